/** Servers that tests make of a few methods. */
import { createServer, type ServerHttp2Session } from "node:http2";
import type { AddressInfo } from "node:net";
import { after } from "node:test";

import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code, ConnectError, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";

/** The URL of a server with these routes, which ends with the tests of its file. */
export async function listening(routes: (router: ConnectRouter) => void, port = 0): Promise<string> {
  const server = createServer(connectNodeAdapter({ routes }));
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  const sessions: ServerHttp2Session[] = [];
  server.on("session", (session) => sessions.push(session));
  after(() => {
    server.close();
    for (const session of sessions) session.destroy(); // Node 20 lets clients keep them, and the process with them
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise<void>((closed) => server.close(() => closed()));
  return port;
}

export const unavailable = () => new ConnectError("broken", Code.Unavailable);

/** A status with google.rpc.ErrorInfo and RetryInfo of 10 ms. */
export function refused(code: Code, reason: string, message: string): ConnectError {
  const error = new ConnectError(message, code);
  const info = new BinaryWriter().tag(1, WireType.LengthDelimited).string(reason).finish();
  const delay = new BinaryWriter().tag(2, WireType.Varint).int32(10_000_000).finish();
  const retry = new BinaryWriter().tag(1, WireType.LengthDelimited).bytes(delay).finish();
  error.details = [
    { type: "google.rpc.ErrorInfo", value: info },
    { type: "google.rpc.RetryInfo", value: retry },
  ];
  return error;
}
