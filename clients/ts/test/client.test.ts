/** The client against a server that fails as it is told to. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouter, type Interceptor } from "@connectrpc/connect";

import { type ErrorKind, ToolErrorSchema } from "../../../gen/ts/toolhub/v1/error_pb.js";
import { ToolService } from "../../../gen/ts/toolhub/v1/tool_service_pb.js";
import { target, transportTo } from "../src/connection.js";
import { CallFailed, connect, HubError, Reason, valueOf } from "../src/index.js";
import { freePort, listening, refused, unavailable } from "./serving.js";

const PATIENCE_MS = 60_000;

interface Fake {
  url: string;
  failures: ConnectError[];
  headers: Headers[];
  requestIds: string[];
}

async function serve(port = 0): Promise<Fake> {
  const fake: Fake = { url: "", failures: [], headers: [], requestIds: [] };
  const judge = (headers: Headers) => {
    fake.headers.push(headers);
    const failure = fake.failures.shift();
    if (failure !== undefined) throw failure;
  };
  const routes = (router: ConnectRouter) =>
    router.service(ToolService, {
      invoke(request, context) {
        judge(context.requestHeader);
        fake.requestIds.push(request.context?.requestId ?? "");
        const args = request.intent?.args;
        const value = args?.case === "argsJson" ? args.value : new Uint8Array();
        return { outcome: { case: "result" as const, value: { ok: true, result: { case: "resultJson", value } } } };
      },
      getTool(request, context) {
        judge(context.requestHeader);
        return { tool: { name: request.name } };
      },
    });
  fake.url = await listening(routes, port);
  return fake;
}

const failsAs = (code: Code) => (error: unknown) => error instanceof HubError && error.code === code;

test("an address is completed, and https means TLS", () => {
  for (const [given, url] of [
    ["", "http://127.0.0.1:50051"],
    ["hub.example.com", "http://hub.example.com:50051"],
    ["hub:7000", "http://hub:7000"],
    ["http://hub", "http://hub:50051"],
    ["https://hub.example.com", "https://hub.example.com"],
    ["[::1]:7000", "http://[::1]:7000"],
  ]) {
    assert.equal(target(given, {}, {}).url, url);
  }
});

test("what is left out comes from the environment", () => {
  const found = target(undefined, {}, { TOOLHUB_ADDRESS: "hub:7000", TOOLHUB_API_KEY: "thk_1" });
  assert.deepEqual(found, { url: "http://hub:7000", apiKey: "thk_1", tls: {} });
});

test("halves and contradictions are refused", () => {
  assert.throws(() => target(undefined, { certFile: "me.pem" }, {}), /both or none/);
  assert.throws(() => target("http://hub", { caFile: "ca.pem" }, {}), /write https/);
});

test("a key is sent by methods and generated clients, and warned of", async () => {
  const fake = await serve();
  const warnings: string[] = [];
  const warn = (message: string) => warnings.push(message);
  const hub = connect(fake.url, { apiKey: "thk_1", warn });
  await hub.invoke({ tool: "t/a" });
  await hub.tools.getTool({ name: "t/a" });
  for (const headers of fake.headers) {
    assert.equal(headers.get("authorization"), "Bearer thk_1");
    assert.match(headers.get("user-agent") ?? "", /^toolhub-js\//);
  }
  transportTo({ url: "http://hub.example.com:7000", apiKey: "thk_1", tls: {} }, { warn });
  assert.equal(warnings.length, 1);
  assert.doesNotMatch(warnings[0] ?? "", /thk_1/);
});

test("what the hub refused unseen is sent again", async () => {
  const fake = await serve();
  const hub = connect(fake.url, { retryMs: PATIENCE_MS });
  for (const failure of [
    () => refused(Code.ResourceExhausted, Reason.OVERLOADED, "Full."),
    () => refused(Code.Unavailable, Reason.DRAINING, "Leaving."),
  ]) {
    fake.failures.push(failure(), failure());
    assert.deepEqual(valueOf(await hub.invoke({ tool: "t/a", args: { n: 1 } })), { n: 1 });
  }
  assert.equal(fake.headers.length, 6);
});

test("a call that broke is repeated only with a key, and reading is", async () => {
  const fake = await serve();
  const hub = connect(fake.url, { retryMs: PATIENCE_MS });
  fake.failures.push(unavailable());
  await assert.rejects(hub.invoke({ tool: "t/a" }), failsAs(Code.Unavailable));
  fake.failures.push(unavailable());
  assert.ok((await hub.invoke({ tool: "t/a", idempotencyKey: "once" })).ok);
  fake.failures.push(unavailable());
  assert.equal((await hub.getTool("t/a")).name, "t/a");
  fake.failures.push(unavailable());
  assert.ok((await connect(fake.url, { retryMs: PATIENCE_MS, automaticKeys: true }).invoke({ tool: "t/a" })).ok);
});

test("what cannot help is not repeated, and is told with its reason", async () => {
  const fake = await serve();
  fake.failures.push(refused(Code.NotFound, Reason.TOOL_NOT_FOUND, "There is no such tool."));
  await assert.rejects(connect(fake.url, { retryMs: PATIENCE_MS }).getTool("t/a"), (error: unknown) => {
    assert.ok(error instanceof HubError);
    assert.ok(error instanceof ConnectError);
    assert.equal(error.reason, "TOOL_NOT_FOUND");
    assert.equal(error.retryAfterMs, 10);
    assert.ok(error.message.endsWith(`${fake.url}: There is no such tool. (TOOL_NOT_FOUND)`), error.message);
    return true;
  });
  assert.equal(fake.headers.length, 1);
});

test("a hub that is away is told with its address, and one that starts is waited for", async () => {
  const port = await freePort();
  await assert.rejects(connect(`http://127.0.0.1:${port}`, { retryMs: 0 }).invoke({ tool: "t/a" }), (error: unknown) => {
    assert.ok(error instanceof HubError);
    assert.ok(error.wasNotSent);
    assert.match(error.message, new RegExp(`127.0.0.1:${port}`));
    return true;
  });
  const calling = connect(`http://127.0.0.1:${port}`, { retryMs: PATIENCE_MS }).invoke({ tool: "t/a" });
  await serve(port);
  assert.ok((await calling).ok);
});

test("a stream is opened again like a call, and what breaks while it is read is told with its reason", async () => {
  const port = await freePort();
  const url = `http://127.0.0.1:${port}`;
  const hub = connect(url, { retryMs: PATIENCE_MS });
  const reading = (async () => {
    for await (const event of hub.invokeStream({ tool: "t/a", idempotencyKey: "once" })) assert.ok(event);
  })();
  let opened = 0;
  await listening((router) => {
    router.service(ToolService, {
      async *invokeStream() {
        opened += 1;
        if (opened < 3) throw opened === 1 ? unavailable() : refused(Code.ResourceExhausted, Reason.OVERLOADED, "Full.");
        yield { event: { case: "progress" as const, value: { step: 1 } } };
        throw refused(Code.Unavailable, Reason.DRAINING, "Leaving.");
      },
    });
  }, port);
  await assert.rejects(reading, (error: unknown) => {
    return error instanceof HubError && error.reason === Reason.DRAINING && error.message.includes(url);
  });
  assert.equal(opened, 3);
});

test("a session waits for a hub that is still starting", async () => {
  const port = await freePort();
  const session = connect(`http://127.0.0.1:${port}`, { retryMs: PATIENCE_MS }).session();
  const calling = session.invoke({ tool: "t/a" });
  await listening((router) => {
    router.service(ToolService, {
      async *invokeSession(requests) {
        for await (const { calls } of requests) {
          for (const { callId } of calls) {
            yield { events: [{ callId, event: { case: "result" as const, value: { ok: true } } }] };
          }
        }
      },
    });
  }, port);
  assert.ok((await calling).ok);
  await session.close();
});

test("a call ends at the hub when its reader leaves the loop", async () => {
  let ended: (why: unknown) => void;
  const end = new Promise((resolve) => (ended = resolve));
  const url = await listening((router) => {
    router.service(ToolService, {
      async *invokeStream(_, context) {
        context.signal.addEventListener("abort", () => ended(context.signal.reason));
        yield { event: { case: "progress" as const, value: { step: 1 } } };
        await end;
      },
    });
  });
  for await (const event of connect(url).invokeStream({ tool: "t/a" })) {
    assert.ok(event);
    break;
  }
  assert.ok(await end);
});

test("interceptors of the program's own see every RPC, such as one that carries a trace on", async () => {
  const fake = await serve();
  const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const tracing: Interceptor = (next) => (request) => {
    request.header.set("traceparent", traceparent);
    return next(request);
  };
  const hub = connect(fake.url, { interceptors: [tracing] });
  await hub.invoke({ tool: "t/a" });
  await hub.tools.getTool({ name: "t/a" });
  assert.deepEqual(fake.headers.map((headers) => headers.get("traceparent")), [traceparent, traceparent]);
});

test("the request id of a connection is minted once, unless it is given", async () => {
  const fake = await serve();
  const hub = connect(fake.url);
  await hub.invoke({ tool: "t/a" });
  await hub.invoke({ tool: "t/a", context: { taskId: "t1" } });
  await connect(fake.url).invoke({ tool: "t/a" });
  await hub.invoke({ tool: "t/a", context: { requestId: "r1" } });
  await connect(fake.url, { context: { requestId: "r2" } }).invoke({ tool: "t/a" });
  const [first = "", second, other, ...given] = fake.requestIds;
  assert.match(first, /^req_/);
  assert.equal(second, first);
  assert.notEqual(other, first);
  assert.deepEqual(given, ["r1", "r2"]);
});

test("a kind of a newer hub survives", () => {
  const failed = new CallFailed(create(ToolErrorSchema, { kind: 4711 as ErrorKind, message: "New." }), "call_1");
  assert.deepEqual([failed.kind, failed.advice, failed.message], ["UNKNOWN_4711", "", "New."]);
  assert.deepEqual([failed.retryable, failed.retryAfterMs, failed.violations], [false, 0, []]);
});
