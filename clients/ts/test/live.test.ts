/** The client against a whole hub, which tests/unit/clients/test_ts_client.py serves; everybody may delete there. */
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";

import { Code } from "@connectrpc/connect";

import type { ToolResult } from "../../../gen/ts/toolhub/v1/result_pb.js";
import { CallFailed, connect, HubError, isFinal, JobState, valueOf } from "../src/index.js";
import { MAX_IN_FLIGHT } from "../src/session.js";

const address = process.env["TOOLHUB_LIVE"] ?? "";
const options = { skip: address ? false : "TOOLHUB_LIVE names no hub" };
const HASH = "core/util.hash.sha256Text";
const EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/** A hub that wants TLS and a certificate of its caller's; the folder beside has both. */
const encrypted = process.env["TOOLHUB_ENCRYPTED"] ?? "";
const file = (name: string) => join(process.env["TOOLHUB_ENCRYPTED_FILES"] ?? "", name);

test("TLS and a certificate of one's own open a hub that wants both", { skip: !encrypted }, async () => {
  const own = { certFile: file("me.pem"), keyFile: file("me.key") };
  assert.ok((await connect(encrypted, { caFile: file("ca.pem"), ...own }).serverInfo()).principal);
  const ca = { caFile: file("ca.pem") };
  for (const [url, config, says] of [
    [encrypted, ca, /wants a client certificate/],
    [encrypted, own, /is not trusted/],
    [encrypted.replace("https://", "http://"), {}, /uses TLS: write https/],
    [`https://${address.replace("http://", "")}`, ca, /does not use TLS/],
  ] as const) {
    await assert.rejects(connect(url, { ...config, retryMs: 0 }).serverInfo(), (error: unknown) => {
      assert.ok(error instanceof HubError && error.code === Code.Unavailable, `${error}`);
      assert.match(error.message, says);
      return true;
    });
  }
});

test("the plan of a dry run is committed once", options, async () => {
  const hub = connect(address);
  await hub.invoke({ tool: "core/fs.writeText", args: { path: "a.txt", text: "hi" }, purpose: "a test" });
  const call = { tool: "core/fs.deletePath", args: { path: "a.txt", confirm: true }, purpose: "a test" };
  const refused = await hub.invoke(call);
  assert.throws(() => valueOf(refused), (error: unknown) => error instanceof CallFailed && error.kind === "PLAN_REQUIRED");
  const shown = await hub.dryRun(call);
  assert.equal(shown.error, undefined);
  assert.ok((await hub.commit(shown)).ok);
  assert.ok(!(await hub.commit(shown)).ok);
});

test("tools are listed, found and exported", options, async () => {
  const hub = connect(address);
  const names: string[] = [];
  for await (const tool of hub.listTools({ names: ["core/util.*"] })) names.push(tool.name);
  const [hit] = await hub.search("current time", 1);
  assert.ok(names.includes(hit?.tool?.name ?? ""));
  assert.ok(Object.values((await hub.export("mcp")).names).includes(HASH));
  await assert.rejects(hub.getTool("no/such.tool"), (error: unknown) => {
    return error instanceof HubError && error.code === Code.NotFound && error.reason === "TOOL_NOT_FOUND";
  });
});

test("a model's tool calls are made and answered in their form", options, async () => {
  const hub = connect(address);
  const { names } = await hub.export("openai", { names: [HASH] });
  const name = Object.keys(names)[0] ?? "";
  const chat = await hub.runToolCall({ id: "call_7", type: "function", function: { name, arguments: '{"text":""}' } });
  assert.ok("role" in chat && chat.tool_call_id === "call_7" && chat.content.includes(EMPTY));
  const item = { type: "function_call" as const, call_id: "call_7", name, arguments: '{"text":""}' };
  const output = await hub.runToolCall(item);
  assert.ok("output" in output && output.output.includes(EMPTY));
  const block = await hub.runToolCall({ type: "tool_use", id: "toolu_7", name: "core/fs.readText", input: { path: "../x" } });
  assert.ok("tool_use_id" in block && block.is_error && block.content.startsWith("PATH_OUTSIDE_SANDBOX: "));
  const broken = await hub.runToolCall({ ...item, arguments: "{" });
  assert.ok("output" in broken && broken.output.startsWith("INVALID_INPUT: "));
});

test("a model's call is understood by another connection, and its plan committed", options, async () => {
  const hub = connect(address);
  const more = { purpose: "a test" };
  await hub.invoke({ tool: "core/fs.writeText", args: { path: "plans.txt", text: "x", overwrite: true }, ...more });
  const ask = async (input: object): Promise<string> => {
    const block = { type: "tool_use" as const, id: "toolu_7", name: "core__fs_deletePath", input };
    const message = await hub.runToolCall(block, more);
    assert.ok("content" in message);
    return message.content;
  };
  const args = { path: "plans.txt", confirm: true };
  const refused = await ask(args);
  assert.ok(refused.includes('Delete "plans.txt": 1 file, 1 byte.'), refused);
  const plan = /toolhub_plan: "(plan_[a-z2-7]+)"/.exec(refused)?.[1];
  assert.ok((await ask({ ...args, toolhub_plan: plan })).includes('"deleted":true'));
});

test("arguments are read in the form of their export", options, async () => {
  const hub = connect(address);
  const args = { text: "abcdef", maxChars: 3, marker: null };
  const name = "core__util_text_truncate";
  await hub.export("openai_strict", { names: ["core/util.text.truncate"] });
  const item = { type: "function_call" as const, call_id: "call_7", name, arguments: JSON.stringify(args) };
  const output = await hub.runToolCall(item);
  assert.ok("output" in output && output.output.includes("ab…"), JSON.stringify(output));
  await hub.export("gemini", { names: ["core/util.text.truncate"] });
  const part = await hub.runToolCall({ functionCall: { name, args, id: "7" } });
  assert.ok("functionResponse" in part && part.functionResponse.id === "7");
  assert.ok("output" in part.functionResponse.response && part.functionResponse.response.output.includes("ab…"));
  const refused = await hub.runToolCall({ name, args: {} });
  assert.ok("functionResponse" in refused && "error" in refused.functionResponse.response);
});

test("a value is given as the type that a schema makes of it", options, async () => {
  const schema = { parse: (value: unknown) => (value as { sha256: string }).sha256.length };
  const size: number = valueOf(await connect(address).invoke({ tool: HASH, args: { text: "" } }), schema);
  assert.equal(size, 64);
});

test("a value has the type that the caller names, and throws where there is none", options, async () => {
  const hub = connect(address);
  const call = { tool: HASH, args: { text: "" } };
  const { value, ok } = await hub.invoke<{ sha256: string }>(call);
  assert.ok(ok && value.sha256 === EMPTY);
  const named: string = valueOf(await hub.invoke<{ sha256: string }>(call)).sha256;
  const plain: string = valueOf<{ sha256: string }>((await hub.invoke(call)) as ToolResult).sha256;
  assert.deepEqual([named, plain], [EMPTY, EMPTY]);
  const session = hub.session();
  assert.equal((await session.invoke<{ sha256: string }>(call)).value.sha256, EMPTY);
  await session.close();
  const { jobId } = await hub.submitJob({ ...call, purpose: "a test" });
  assert.equal((await hub.jobResult<{ sha256: string }>(jobId)).value.sha256, EMPTY);
  const refused = await hub.invoke({ tool: "no/such.tool" });
  assert.throws(() => refused.value, (error: unknown) => error instanceof CallFailed && error.kind === "TOOL_NOT_FOUND");
});

test("every method takes a time, and a filter before its options", options, async () => {
  const hub = connect(address);
  const limits = { timeoutMs: 60_000 };
  const where = { names: [HASH] };
  assert.equal((await hub.search("hash a text", where, { limit: 1, ...limits }))[0]?.tool?.name, HASH);
  assert.equal((await hub.search("hash a text", 1, where)).length, 1, "the limit in front, as before");
  assert.deepEqual(Object.values((await hub.export("openai", where, limits)).names), [HASH]);
  assert.ok((await hub.stubs("python", where, limits)).includes("sha256"));
  assert.equal((await hub.getTool(HASH, limits)).name, HASH);
  assert.ok((await hub.serverInfo(limits)).server?.version);
  for await (const tool of hub.listTools(where, limits)) assert.equal(tool.name, HASH);
  const shown = await hub.dryRun({ tool: HASH, args: { text: "" }, ...limits });
  assert.ok((await hub.commit(shown, limits)).ok);
  const { jobId } = await hub.submitJob({ tool: HASH, args: { text: "" }, purpose: "a test", ...limits });
  assert.ok((await hub.jobResult(jobId, limits)).ok);
  assert.equal((await hub.getJob(jobId, limits)).jobId, jobId);
  for await (const job of hub.listJobs({ tool: HASH, pageSize: 1 }, limits)) assert.ok(job.jobId);
  assert.ok(isFinal((await hub.cancelJob(jobId, { reason: "a test", ...limits })).state));
  assert.ok(isFinal((await hub.cancelJob(jobId, "a test")).state), "the reason as a text, as before");
  const { artifactId } = await hub.putArtifact(new TextEncoder().encode("hello"), { name: "a.txt" }, limits);
  assert.equal(Buffer.from(await hub.getArtifact(artifactId, limits)).toString(), "hello");
  await hub.deleteArtifact(artifactId, limits);
  await assert.rejects(hub.getTool(HASH, { timeoutMs: 0 }), RangeError);
});

test("a job is submitted, listed and answered", options, async () => {
  const hub = connect(address);
  const job = await hub.submitJob({ tool: HASH, args: { text: "" }, purpose: "a test" });
  assert.deepEqual(valueOf(await hub.jobResult(job.jobId)), { sha256: EMPTY });
  const listed: string[] = [];
  for await (const each of hub.listJobs({ tool: HASH, pageSize: 1 })) listed.push(each.jobId);
  assert.deepEqual(listed.filter((id) => id === job.jobId), [job.jobId]);
  assert.ok(isFinal((await hub.cancelJob(job.jobId)).state));
});

test("several jobs are followed to their ends, and a history is read whole", options, async () => {
  const hub = connect(address);
  const submit = () => hub.submitJob({ tool: HASH, args: { text: "" }, purpose: "a test" });
  const jobIds = (await Promise.all([submit(), submit(), submit()])).map((job) => job.jobId);
  for await (const status of hub.watchJobs({ jobIds })) {
    assert.ok(!isFinal(status.state) || status.state === JobState.SUCCEEDED);
  }
  const history = [];
  for await (const { sequence } of hub.watchJob(jobIds[0] ?? "", { fromFirst: true })) history.push(Number(sequence));
  assert.ok(history.length > 1);
  assert.deepEqual(history, history.map((_, place) => place + 1));
});

test("a watch of tools says whether they must be listed anew", options, async () => {
  let resumeToken = "";
  for (const isFirst of [true, false]) {
    for await (const change of connect(address).watchTools({}, { resumeToken })) {
      assert.equal(change.reset, isFirst);
      resumeToken = change.resumeToken;
      break;
    }
  }
});

test("calls of one connection share a workspace, and others have their own", options, async () => {
  const hub = connect(address);
  const read = { tool: "core/fs.readText", args: { path: "shared.txt" }, purpose: "a test" };
  valueOf(await hub.invoke({ tool: "core/fs.writeText", args: { path: "shared.txt", text: "hi" }, purpose: "a test" }));
  valueOf(await hub.jobResult((await hub.submitJob(read)).jobId));
  const elsewhere = await connect(address).invoke(read);
  assert.throws(() => valueOf(elsewhere), (error: unknown) => error instanceof CallFailed && error.kind === "NOT_FOUND");
});

test("a tool that is not as it was shown is refused", options, async () => {
  const hub = connect(address);
  const call = { tool: HASH, args: { text: "" } };
  const refused = await hub.invoke({ ...call, expectedToolDigest: "0".repeat(64) });
  assert.throws(() => valueOf(refused), (error: unknown) => error instanceof CallFailed && error.kind === "TOOL_CHANGED");
  const { digest } = await hub.getTool(HASH);
  assert.ok((await hub.invoke({ ...call, expectedToolDigest: digest })).ok);
});

test("a refusal by policy names what would allow the call", options, async () => {
  const call = { tool: "core/http.fetchText", args: { url: "https://example.com/" }, purpose: "a test" };
  const refused = await connect(address).invoke(call);
  assert.throws(() => valueOf(refused), (error: unknown) => {
    return error instanceof CallFailed && error.kind === "POLICY_DENIED" && error.remedy !== "" && error.approvalId === "";
  });
});

test("an artifact comes back as it was put", options, async () => {
  const hub = connect(address);
  const content = new TextEncoder().encode("0123456789".repeat(100_000));
  const { artifactId } = await hub.putArtifact(content, { name: "a.txt" });
  assert.ok(Buffer.from(content).equals(await hub.getArtifact(artifactId)));
  const listed = [];
  for await (const each of hub.listArtifacts({ pageSize: 1 })) listed.push(each.artifactId);
  assert.deepEqual(listed.filter((id) => id === artifactId), [artifactId]);
  await hub.deleteArtifact(artifactId);
  await assert.rejects(hub.deleteArtifact(artifactId), (error: unknown) => {
    return error instanceof HubError && error.code === Code.NotFound;
  });
  assert.ok((await hub.serverInfo()).server?.version);
  await assert.rejects(hub.putArtifact(content, { sizeBytes: 3n }), (error: unknown) => {
    return error instanceof HubError && error.code === Code.InvalidArgument;
  });
  await assert.rejects(hub.getArtifact("art_unknown"), (error: unknown) => {
    return error instanceof HubError && error.code === Code.NotFound;
  });
});

test("calls of a session each get their own answer", options, async () => {
  const session = connect(address).session();
  const numbers = Array.from({ length: 2 * MAX_IN_FLIGHT }, (_, number) => String(number));
  const answers = await Promise.all(numbers.map((text) => session.invoke({ tool: HASH, args: { text } })));
  assert.equal(new Set(answers.map((answer) => JSON.stringify(valueOf(answer)))).size, numbers.length);
  await session.close();
  await assert.rejects(session.invoke({ tool: HASH }), /closed/);
});

test("an approval is listed, watched, and decided by nobody for themselves", options, async () => {
  const hub = connect(address);
  const { error } = await hub.invoke({ tool: "core/fs.stat", args: { path: "a.txt" }, purpose: "a test" });
  assert.ok(error);
  const asked = new CallFailed(error, "").approvalId;
  const listed = [];
  for await (const approval of hub.listApprovals()) listed.push(approval.approvalId);
  assert.ok(listed.includes(asked));
  let resumeToken = "";
  for await (const change of hub.watchApprovals({ tool: "core/fs.*" })) {
    resumeToken = change.resumeToken;
    if (resumeToken) break; // those that were pending have come
  }
  for await (const { approval } of hub.watchApprovals({}, { resumeToken })) {
    assert.equal(approval?.approvalId, asked); // the latest comes twice
    break;
  }
  await assert.rejects(hub.approve(await hub.getApproval(asked)), (failed: unknown) => {
    return failed instanceof HubError && failed.code === Code.PermissionDenied;
  });
});
