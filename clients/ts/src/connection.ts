import { readFileSync } from "node:fs";
import { connect } from "node:tls";
import { setTimeout as sleep } from "node:timers/promises";

import type { DescMethod, Message } from "@bufbuild/protobuf";
import { MethodOptions_IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, type ContextValues, createContextKey, createContextValues, type Interceptor, type StreamResponse, type Transport, type UnaryResponse } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import type { ToolIntent } from "../../../gen/ts/toolhub/v1/call_pb.js";
import { Reason } from "./errors.js";
import { HubError, hubError } from "./failures.js";

const DEFAULT_ADDRESS = "http://127.0.0.1:50051";
const DEFAULT_PORT = "50051";
const MAX_MESSAGE_BYTES = 16 * 1024 * 1024;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
/** Sent with every RPC as part of the user agent. */
const VERSION = "0.1.0";

/** How to reach a hub. What is left out comes from the environment. */
export interface Config {
  /** Sent with every RPC, also by the generated clients. TOOLHUB_API_KEY. */
  apiKey?: string;
  /** A file with certificates (PEM) to trust in the place of Node's own. TOOLHUB_CA_FILE. */
  caFile?: string;
  /** The caller's own certificate and its key, for mutual TLS. TOOLHUB_CERT_FILE, TOOLHUB_KEY_FILE. */
  certFile?: string;
  keyFile?: string;
  /** Give each call without an idempotency key one, so that it may be repeated when its connection breaks. */
  automaticKeys?: boolean;
  /** How long to wait for a hub to answer, and to repeat what may be repeated: 10,000 by default; 0 asks once. */
  retryMs?: number;
  /** Further interceptors of the transport, such as one that traces; outermost first. */
  interceptors?: Interceptor[];
  /** Told of an API key that others can read on its way; `process.emitWarning` by default. */
  warn?: (message: string) => void;
}

/** Where a hub is, and how to connect to it. */
export interface Target {
  url: string;
  apiKey: string;
  /** Of node:tls; empty for plaintext. */
  tls: { ca?: Buffer; cert?: Buffer; key?: Buffer };
}

/** What is given, else what the environment says. Throws for a certificate without its key, or for TLS with `http://`. */
export function target(address: string | undefined, config: Config, env: NodeJS.ProcessEnv = process.env): Target {
  const given = address || env["TOOLHUB_ADDRESS"] || DEFAULT_ADDRESS;
  const caFile = config.caFile || env["TOOLHUB_CA_FILE"];
  const certFile = config.certFile || env["TOOLHUB_CERT_FILE"];
  const keyFile = config.keyFile || env["TOOLHUB_KEY_FILE"];
  if (!certFile !== !keyFile) throw new TypeError("certFile and keyFile belong together: give both or none");
  const isPlain = given.startsWith("http://");
  if (address && isPlain && (config.caFile || config.certFile)) {
    throw new TypeError(`${given} asks for plaintext, and certificates for TLS: write https://`);
  }
  const scheme = isPlain || given.startsWith("https://") ? "" : caFile || certFile ? "https://" : "http://";
  const url = new URL(scheme + given);
  if (!url.port && (scheme || isPlain)) url.port = DEFAULT_PORT;
  const tls: Target["tls"] = {};
  if (url.protocol === "https:") {
    if (caFile) tls.ca = readFileSync(caFile);
    if (certFile) tls.cert = readFileSync(certFile);
    if (keyFile) tls.key = readFileSync(keyFile);
  }
  return { url: url.origin, apiKey: config.apiKey || env["TOOLHUB_API_KEY"] || "", tls };
}

/** The transport to a hub: its RPCs bear the credential, wait for a hub, and are repeated where they may be. */
export function transportTo(where: Target, config: Config): Transport {
  const { hostname, protocol } = new URL(where.url);
  if (where.apiKey && protocol === "http:" && !isLocal(hostname)) {
    const warn = config.warn ?? ((message: string) => process.emitWarning(message, "PlaintextCredentialWarning"));
    warn(`The API key goes to ${where.url} unencrypted; use https:// or set TOOLHUB_CA_FILE.`);
  }
  const transport = createGrpcTransport({
    baseUrl: where.url,
    nodeOptions: where.tls,
    readMaxBytes: MAX_MESSAGE_BYTES,
    // A connection that swallows everything is noticed after 40 s, also while a call waits for its answer.
    pingIntervalMs: 30_000,
    pingTimeoutMs: 10_000,
    interceptors: [...(config.interceptors ?? []), repeating(where.url, config.retryMs ?? 10_000), bearing(where.apiKey)],
  });
  const told = (error: unknown) => Promise.reject(late(error, where.url));
  return {
    unary: (...call) => transport.unary(...call).catch(told),
    stream: (...call) => transport.stream(...call).then((response) => readable(response, (error) => late(error, where.url)), told),
  };
}

/** A deadline that passes in the client is reported outside the interceptors. */
function late(error: unknown, address: string): unknown {
  return error instanceof ConnectError && error.code === Code.DeadlineExceeded ? hubError(error, address) : error;
}

function isLocal(hostname: string): boolean {
  return hostname === "localhost" || hostname === "[::1]" || hostname.startsWith("127.");
}

function bearing(apiKey: string): Interceptor {
  return (next) => (request) => {
    if (apiKey) request.header.set("authorization", `Bearer ${apiKey}`);
    request.header.set("user-agent", `toolhub-js/${VERSION}`);
    return next(request);
  };
}

/** What is left of the time of an RPC (gRPC over HTTP/2, "Timeout"). */
const TIMEOUT = "grpc-timeout";
/** RPCs that change something, and are as good twice as once. */
const REPEATABLE: ReadonlySet<string> = new Set(["CancelJob", "DecideApproval"]);

function repeating(address: string, retryMs: number): Interceptor {
  return (next) => async (request) => {
    const beganMs = performance.now();
    const untilMs = beganMs + retryMs;
    const timeoutMs = Number.parseInt(request.header.get(TIMEOUT) ?? ""); // connect writes milliseconds
    // One message is sent again with its stream; more only where none of them has left.
    const isMany = request.stream && request.method.methodKind !== "server_streaming";
    const message: object = request.stream && !isMany ? await first(request.message) : request.message;
    for (let failed = 1; ; failed += 1) {
      try {
        if (!request.stream) return await next(request);
        if (isMany) return readable(await next(request), (error) => hubError(error, address));
        const response = readable(await next({ ...request, message: each(message as Message) }), (error) => hubError(error, address));
        return response.stream && !request.contextValues.get(IS_BEGUN_AGAIN) ? await begun(response) : response;
      } catch (raised) {
        const error = (!request.signal.aborted && (await tlsProblem(raised, address))) || hubError(raised, address);
        const pauseMs = pauseAfter(failed, error);
        if (request.contextValues.get(IS_BEGUN_AGAIN)) throw error;
        const isRepeatable = isMany ? wasNotSent(error) : mayRepeat(error, request.method, message);
        if (!isRepeatable || performance.now() + pauseMs >= untilMs) throw error;
        await sleep(pauseMs, undefined, { signal: request.signal });
        const leftMs = Math.ceil(beganMs + timeoutMs - performance.now());
        if (timeoutMs > 0) request.header.set(TIMEOUT, `${Math.max(1, leftMs)}m`);
      }
    }
  };
}

/** What Node says of certificates that it does not trust. */
const UNTRUSTED: ReadonlySet<string> = new Set([
  "DEPTH_ZERO_SELF_SIGNED_CERT", "SELF_SIGNED_CERT_IN_CHAIN", "UNABLE_TO_GET_ISSUER_CERT_LOCALLY", "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);
const PROBE_MS = 2_000;

/** That there is no connection to a server that is there, for TLS; undefined: it is not for that. */
async function tlsProblem(raised: unknown, address: string): Promise<HubError | undefined> {
  if (!(raised instanceof ConnectError) || raised instanceof HubError) return undefined;
  const why = await reasonOf(raised, new URL(address));
  const failed = why && new ConnectError(why, Code.Unavailable, undefined, undefined, raised.cause);
  return failed ? new HubError(failed, address) : undefined;
}

async function reasonOf(error: ConnectError, url: URL): Promise<string> {
  const code = (error.cause as { code?: string } | undefined)?.code ?? "";
  if (["ERR_SSL_WRONG_VERSION_NUMBER", "ERR_SSL_PACKET_LENGTH_TOO_LONG"].includes(code)) {
    return "The server does not use TLS: leave out https:// and TOOLHUB_CA_FILE.";
  }
  if (code === "CERT_HAS_EXPIRED" || code === "CERT_NOT_YET_VALID") {
    return "The server's certificate has expired or is not valid yet: it must be renewed, or a clock is wrong.";
  }
  if (UNTRUSTED.has(code)) {
    return "The server's certificate is not trusted: give the CA that signed it as caFile (TOOLHUB_CA_FILE).";
  }
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return "The server's certificate is for another host name: use one that the certificate contains.";
  }
  // Of a connection that the server closes at once, Node says no more than that the stream was.
  const isClosed = error.details.length === 0 && error.rawMessage.startsWith("http/2 stream closed");
  if (!isClosed || (error.code !== Code.Canceled && error.code !== Code.Unavailable)) return "";
  if (url.protocol === "https:") {
    return "The server closes the connection: it probably wants a client certificate (certFile and keyFile).";
  }
  return (await speaksTls(url)) ? "The server uses TLS: write https://, and give its CA as caFile (TOOLHUB_CA_FILE)." : "";
}

/** Whether there is a TLS handshake to be had. Nothing is sent. */
function speaksTls(url: URL): Promise<boolean> {
  return new Promise((resolve) => {
    const host = url.hostname.replace(/^\[|\]$/g, "");
    const socket = connect({ host, port: Number(url.port || 80), rejectUnauthorized: false, ALPNProtocols: ["h2"] });
    const answer = (does: boolean) => {
      socket.destroy();
      resolve(does);
    };
    socket.setTimeout(PROBE_MS, () => answer(false));
    socket.once("secureConnect", () => answer(true)).once("error", () => answer(false));
  });
}

const IS_BEGUN_AGAIN = createContextKey(false);

/** For streams that whoever opens them begins again. */
export function begunAgain(): ContextValues {
  return createContextValues().set(IS_BEGUN_AGAIN, true);
}

async function first(messages: AsyncIterable<Message>): Promise<Message> {
  for await (const message of messages) return message;
  throw new TypeError("a request without a message");
}

async function* each(message: Message): AsyncGenerator<Message> {
  yield message;
}

type AnyResponse = UnaryResponse | StreamResponse;

/** The same; its reader gets errors during the stream in the same form as those before it. */
function readable<Response extends AnyResponse>(response: Response, told: (error: unknown) => unknown): Response {
  if (!response.stream) return response;
  const messages = response.message[Symbol.asyncIterator]();
  const next = () => messages.next().catch((error: unknown) => Promise.reject(told(error)));
  return { ...response, message: { [Symbol.asyncIterator]: () => ({ next }) } };
}

/** The same once its first message has come: what fails before may be repeated. */
async function begun(response: StreamResponse): Promise<StreamResponse> {
  const messages = response.message[Symbol.asyncIterator]();
  const head = [await messages.next()];
  const next = async () => head.pop() ?? messages.next();
  return { ...response, message: { [Symbol.asyncIterator]: () => ({ next }) } };
}

function wasNotSent(error: unknown): boolean {
  return error instanceof HubError && error.wasNotSent;
}

/** What the hub refused without looking at it, what never reached it, and what broke and is as good twice as once. */
function mayRepeat(error: unknown, method: DescMethod, message: object): boolean {
  if (!(error instanceof HubError)) return false;
  if (error.reason === Reason.OVERLOADED || error.reason === Reason.DRAINING || error.wasNotSent) return true;
  if (error.code !== Code.Unavailable) return false;
  const { intent } = message as { intent?: ToolIntent };
  if (intent !== undefined) return intent.idempotencyKey !== "";
  return method.idempotency === MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS || REPEATABLE.has(method.name);
}

/**
 * Milliseconds before the next attempt: they grow exponentially with full jitter (Brooker, "Exponential Backoff And
 * Jitter"); a hub that says when to come back (RetryInfo), as one that leaves does, is not asked before.
 */
export function pauseAfter(failed: number, error: unknown): number {
  const ownMs = Math.random() * Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** failed);
  const askedMs = error instanceof HubError ? Math.min(error.retryAfterMs, LONGEST_PAUSE_MS) : 0;
  return Math.max(ownMs, askedMs * (1 + Math.random() / 2));
}
