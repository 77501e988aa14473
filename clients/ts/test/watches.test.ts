/** Watches and uploads across broken streams. */
import assert from "node:assert/strict";
import { test } from "node:test";

import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";

import { ApprovalService } from "../../../gen/ts/toolhub/v1/approval_service_pb.js";
import type { JobStatusSchema } from "../../../gen/ts/toolhub/v1/job_pb.js";
import { JobService, type WatchJobRequest, type WatchJobsRequest } from "../../../gen/ts/toolhub/v1/job_service_pb.js";
import { ToolService } from "../../../gen/ts/toolhub/v1/tool_service_pb.js";
import { connect, HubError, JobState } from "../src/index.js";
import { listening, refused, unavailable } from "./serving.js";

type Status = MessageInitShape<typeof JobStatusSchema>;

/** A hub whose streams each play the next script, after which they break unless it is the last. */
async function scripted<Request, Message>(
  routes: (router: ConnectRouter, play: (request: Request) => AsyncIterable<Message>) => void,
  scripts: Message[][],
) {
  const asked: Request[] = [];
  async function* play(request: Request): AsyncGenerator<Message> {
    asked.push(request);
    const script = scripts.shift();
    if (script === undefined) throw new ConnectError("the test has no more to say", Code.NotFound);
    yield* script;
    if (scripts.length > 0) throw unavailable();
  }
  return { asked, hub: connect(await listening((router) => routes(router, play))) };
}

const at = (jobId: string, sequence: bigint, state = JobState.RUNNING): { status: Status } => ({
  status: { jobId, sequence, state },
});

test("a watch of a job goes on where its stream broke", async () => {
  const { asked, hub } = await scripted<WatchJobRequest, { status: Status }>(
    (router, play) => router.service(JobService, { watchJob: play }),
    [[at("j1", 1n)], [at("j1", 2n)], [], [at("j1", 3n, JobState.SUCCEEDED)]],
  );
  const seen = [];
  for await (const { sequence } of hub.watchJob("j1", { fromFirst: true })) seen.push(sequence);
  assert.deepEqual(seen, [1n, 2n, 3n]);
  assert.deepEqual(asked.map((request) => request.afterSequence), [0n, 1n, 2n, 2n]);
  assert.ok(asked.every((request) => request.fromFirst));
});

test("a watch of a job that was over before says nothing", async () => {
  const { hub } = await scripted<WatchJobRequest, { status: Status }>(
    (router, play) => router.service(JobService, { watchJob: play }),
    [[]],
  );
  for await (const status of hub.watchJob("j1", { afterSequence: 3n })) assert.fail(String(status.sequence));
  await assert.rejects(hub.jobResult("j1"), (error: unknown) => error instanceof HubError && error.code === Code.NotFound);
});

test("a watch of several jobs asks only for those that are not over", async () => {
  const { asked, hub } = await scripted<WatchJobsRequest, { status: Status }>(
    (router, play) => router.service(JobService, { watchJobs: play }),
    [
      [at("j1", 1n), at("j2", 1n), at("j1", 2n, JobState.SUCCEEDED)],
      [at("j2", 1n), at("j2", 2n, JobState.FAILED)], // the first of them twice
    ],
  );
  const seen = [];
  for await (const { jobId, sequence } of hub.watchJobs({ jobIds: ["j1", "j2"] })) seen.push(`${jobId} ${sequence}`);
  assert.deepEqual(seen, ["j1 1", "j2 1", "j1 2", "j2 2"]);
  assert.deepEqual([asked[1]?.jobIds, asked[1]?.afterSequences], [["j2"], { j2: 1n }]);
});

test("a watch of approvals goes on after its last token", async () => {
  const change = (approvalId: string, resumeToken: string) => ({ approval: { approvalId }, resumeToken });
  const { asked, hub } = await scripted<{ tool: string; resumeToken: string }, ReturnType<typeof change>>(
    (router, play) => router.service(ApprovalService, { watchApprovals: play }),
    [[change("a1", ""), change("a2", "7")], [change("a3", "8")], [change("a4", "9")]],
  );
  const seen = [];
  for await (const { approval } of hub.watchApprovals({ tool: "t/*" })) {
    seen.push(approval?.approvalId);
    if (seen.length === 4) break;
  }
  assert.deepEqual(seen, ["a1", "a2", "a3", "a4"]);
  assert.deepEqual(asked.map(({ tool, resumeToken }) => [tool, resumeToken]), [["t/*", ""], ["t/*", "7"], ["t/*", "8"]]);
});

test("a watch that brings nothing any more is given up, and one that is refused is not begun again", async () => {
  const { asked, hub } = await scripted<{ resumeToken: string }, { reset: boolean; resumeToken: string }>(
    (router, play) => router.service(ToolService, { watchTools: play }),
    [[], [], [{ reset: true, resumeToken: "r1" }], []],
  );
  const failsAs = (code: Code) => (error: unknown) => error instanceof HubError && error.code === code;
  await assert.rejects(hub.watchTools({}, { attempts: 2 }).next(), failsAs(Code.Unavailable));
  const changes = hub.watchTools();
  assert.ok((await changes.next()).value?.reset);
  await assert.rejects(changes.next(), failsAs(Code.NotFound));
  assert.equal(asked.at(-1)?.resumeToken, "r1");
});

test("a hub that fails with a reason is not asked again", async () => {
  let asked = 0;
  const url = await listening((router) => {
    router.service(ToolService, {
      async *watchTools() {
        asked += 1;
        yield { reset: true, resumeToken: "r1" };
        throw refused(Code.Internal, "INTERNAL", "Failed.");
      },
    });
  });
  const changes = connect(url).watchTools();
  assert.ok((await changes.next()).value?.reset);
  await assert.rejects(changes.next(), (error: unknown) => error instanceof HubError && error.reason === "INTERNAL");
  assert.equal(asked, 1);
});

test("a watch ends with its signal, while nothing comes, and at the hub", async () => {
  let ended: (isEnded: boolean) => void;
  const end = new Promise<boolean>((resolve) => (ended = resolve));
  const url = await listening((router) => {
    router.service(ApprovalService, {
      async *watchApprovals(_, context: HandlerContext) {
        context.signal.addEventListener("abort", () => ended(true));
        yield { approval: { approvalId: "a1" } };
        await end;
      },
    });
  });
  const leaving = new AbortController();
  const changes = connect(url).watchApprovals({}, { signal: leaving.signal });
  assert.equal((await changes.next()).value?.approval?.approvalId, "a1");
  const next = changes.next();
  leaving.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
  assert.ok(await end);
});

const breaking = process.env["TOOLHUB_BREAKING"] ?? "";
const options = { skip: breaking ? false : "TOOLHUB_BREAKING names no server" };

test("an upload goes on where its connection broke", options, async () => {
  const hub = connect(breaking);
  const content = new TextEncoder().encode("0123456789abcdef".repeat(128_000));
  for (const each of [content, new Blob([content])]) {
    const { artifactId } = await hub.putArtifact(each);
    assert.ok(Buffer.from(content).equals(await hub.getArtifact(artifactId)));
  }
});

test("content that cannot be read says so itself", options, async () => {
  async function* torn() {
    yield new Uint8Array([1]);
    throw new RangeError("unplugged");
  }
  await assert.rejects(connect(breaking).putArtifact(torn()), RangeError);
});
