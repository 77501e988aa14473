/** How long calls take: against a server that never answers. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";

import { ArtifactService } from "../../../gen/ts/toolhub/v1/artifact_service_pb.js";
import { JobService } from "../../../gen/ts/toolhub/v1/job_service_pb.js";
import { ToolService } from "../../../gen/ts/toolhub/v1/tool_service_pb.js";
import { connect, type Hub, HubError } from "../src/index.js";
import { freePort, listening } from "./serving.js";

/** Each RPC waits until its caller is gone; `leftMs` is what time each of them had. */
async function silent(): Promise<{ hub: Hub; leftMs: (number | undefined)[] }> {
  const leftMs: (number | undefined)[] = [];
  const wait = async (context: HandlerContext): Promise<never> => {
    leftMs.push(context.timeoutMs());
    await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
    throw new ConnectError("the caller is gone", Code.Canceled);
  };
  const routes = (router: ConnectRouter) => {
    router.service(ToolService, {
      invoke: (_, context) => wait(context),
      async *invokeStream(_, context) {
        await wait(context);
      },
      async *invokeSession(_, context) {
        await wait(context);
      },
      exportTools(request, context) {
        if (request.pageToken !== "") return wait(context);
        leftMs.push(context.timeoutMs());
        return { toolsJson: new TextEncoder().encode("[]"), nextPageToken: "2" };
      },
    });
    router.service(JobService, {
      async *watchJob(_, context) {
        await wait(context);
      },
    });
    router.service(ArtifactService, {
      getArtifact: (_, context) => wait(context),
      writeArtifact: (_, context) => wait(context),
    });
  };
  return { hub: connect(await listening(routes), { retryMs: 60_000 }), leftMs };
}

const isLate = (error: unknown) => error instanceof HubError && error.code === Code.DeadlineExceeded;
const call = { tool: "a/tool", timeoutMs: 200 };

test("a call of every kind ends in its time", async () => {
  const { hub } = await silent();
  await assert.rejects(hub.invoke(call), isLate);
  await assert.rejects(hub.invokeStream(call).next(), isLate);
  await assert.rejects(hub.jobResult("job_1", call), isLate);
  await assert.rejects(hub.getArtifact("art_1", call), isLate);
  await assert.rejects(hub.putArtifact(new Uint8Array(10), {}, call), isLate);
  await assert.rejects(hub.session().invoke(call), isLate);
});

test("the server gets the deadline, which pages share", async () => {
  // On a busy machine a short time may be over before the second page is asked for: then it gets more.
  for (const timeoutMs of [200, 2_000, 20_000]) {
    const { hub, leftMs } = await silent();
    await assert.rejects(hub.export("openai", {}, { timeoutMs }), isLate);
    if (leftMs.length < 2) continue;
    assert.ok(leftMs.every((left) => left !== undefined && left <= timeoutMs), `${leftMs}`);
    return;
  }
  assert.fail("the second page was never asked for");
});

test("a signal ends a call that has time left", async () => {
  const { hub } = await silent();
  const reason = new Error("enough");
  const limits = { timeoutMs: 60_000, signal: AbortSignal.abort(reason) };
  await assert.rejects(hub.jobResult("job_1", limits), (error: unknown) => error === reason);
  await assert.rejects(hub.invoke({ ...call, ...limits }), (error: unknown) => ConnectError.from(error).code === Code.Canceled || error === reason);
});

test("the time counts while a hub is waited for", async () => {
  const hub = connect(`127.0.0.1:${await freePort()}`, { retryMs: 600_000 });
  await assert.rejects(hub.invoke(call), isLate);
});
