import { Code, ConnectError } from "@connectrpc/connect";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";

import { ErrorKind, type ToolError, type Violation } from "../../../gen/ts/toolhub/v1/error_pb.js";
import { ADVICE } from "./errors.js";

/** An RPC failed: nothing is known of a call's result. `message` is one line for a person, `code` its gRPC status. */
export class HubError extends ConnectError {
  /** Such as `Reason.OVERLOADED`; empty when it was not the hub that answered. */
  readonly reason: string;
  /** Facts of the reason. */
  readonly info: Readonly<Record<string, string>>;
  /** How long the hub asks to wait; 0 when it does not say. */
  readonly retryAfterMs: number;
  /** Whether the RPC certainly never reached a hub. */
  readonly wasNotSent: boolean;

  constructor(
    error: ConnectError,
    readonly address: string,
  ) {
    const told = detailsOf(error);
    super(`${address}: ${error.rawMessage} (${told.reason || Code[error.code]})`, error.code, error.metadata);
    // It keeps the name: connect takes an error of another one for no ConnectError, and hides its code in a new one.
    this.details = error.details;
    this.cause = error.cause;
    this.reason = told.reason;
    this.info = told.info;
    this.retryAfterMs = told.retryAfterMs;
    this.wasNotSent = !told.reason && NOT_SENT.has((error.cause as { code?: string } | undefined)?.code ?? "");
  }

  /** That of ConnectError takes every object with its fields for one. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === "object" && value !== null && Object.prototype.isPrototypeOf.call(HubError.prototype, value);
  }
}

/**
 * The connection broke after the request was sent: a call may have had its effect. Find out before you repeat it, by
 * `callId` in the audit log, or send calls with an idempotency key.
 */
export class ConnectionLost extends HubError {
  /** The call's id in the audit log; empty when the connection broke before the hub sent it. */
  readonly callId: string;

  constructor(error: ConnectError, address: string) {
    super(error, address);
    this.message += ": the connection broke after the request was sent, which may have had its effect";
    this.callId = error.metadata.get("toolhub-call-id") ?? "";
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    return typeof value === "object" && value !== null && Object.prototype.isPrototypeOf.call(ConnectionLost.prototype, value);
  }
}

/** What Node says of connections that broke. */
const BROKEN: ReadonlySet<string> = new Set([
  "ECONNRESET", "EPIPE", "ETIMEDOUT", "ERR_STREAM_PREMATURE_CLOSE", "ERR_HTTP2_STREAM_ERROR", "ERR_HTTP2_SESSION_ERROR",
  "ERR_HTTP2_GOAWAY_SESSION", "ERR_HTTP2_STREAM_CANCEL",
]);

/** Whether the hub may have got the request, and nobody said what became of it. */
function isLost(error: ConnectError): boolean {
  const code = (error.cause as { code?: string } | undefined)?.code ?? "";
  if (error.details.length > 0 || NOT_SENT.has(code)) return false;
  return error.code === Code.Unavailable || BROKEN.has(code) || error.rawMessage.startsWith("http/2 stream closed");
}

/** What Node says of connections that were never made. */
const NOT_SENT: ReadonlySet<string> = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "ENOENT"]);

/** The failed RPC with what the hub says of it; what is no failed RPC stays as it is. */
export function hubError(error: unknown, address: string): unknown {
  if (!(error instanceof ConnectError) || error instanceof HubError) return error;
  return isLost(error) ? new ConnectionLost(error, address) : new HubError(error, address);
}

interface Details {
  reason: string;
  info: Record<string, string>;
  retryAfterMs: number;
}

/** google.rpc.ErrorInfo and RetryInfo (google/rpc/error_details.proto), of which no package has generated messages. */
function detailsOf(error: ConnectError): Details {
  const told: Details = { reason: "", info: {}, retryAfterMs: 0 };
  for (const detail of error.details) {
    if (!("type" in detail)) continue;
    const fields = fieldsOf(detail.value);
    if (detail.type === "google.rpc.ErrorInfo") {
      told.reason = text(fields.get(1)?.[0]);
      for (const entry of fields.get(3) ?? []) {
        const pair = fieldsOf(entry as Uint8Array);
        told.info[text(pair.get(1)?.[0])] = text(pair.get(2)?.[0]);
      }
    } else if (detail.type === "google.rpc.RetryInfo") {
      const delay = fieldsOf((fields.get(1)?.[0] as Uint8Array | undefined) ?? new Uint8Array());
      told.retryAfterMs = Number(delay.get(1)?.[0] ?? 0) * 1_000 + Number(delay.get(2)?.[0] ?? 0) / 1e6;
    }
  }
  return told;
}

/** The values of each field number: bytes, or a number for a varint. */
function fieldsOf(bytes: Uint8Array): Map<number, (Uint8Array | number)[]> {
  const reader = new BinaryReader(bytes);
  const fields = new Map<number, (Uint8Array | number)[]>();
  while (reader.pos < reader.len) {
    const [number, type] = reader.tag();
    const values = fields.get(number) ?? [];
    fields.set(number, values);
    if (type === WireType.LengthDelimited) values.push(reader.bytes());
    else if (type === WireType.Varint) values.push(Number(reader.int64()));
    else reader.skip(type);
  }
  return fields;
}

function text(bytes: Uint8Array | number | undefined): string {
  return bytes instanceof Uint8Array ? new TextDecoder().decode(bytes) : "";
}

/** A call was refused, or ran and failed. `message` is the hub's, for the model. */
export class CallFailed extends Error {
  constructor(
    readonly reason: ToolError,
    readonly callId: string,
  ) {
    super(reason.message);
    this.name = "CallFailed";
  }

  /** Such as `POLICY_DENIED`; `UNKNOWN_` and a number for a kind of a newer hub. */
  get kind(): string {
    return ErrorKind[this.reason.kind] ?? `UNKNOWN_${this.reason.kind}`;
  }

  /** What a model should do about an error of this kind; empty when the kind is unknown. */
  get advice(): string {
    return (ADVICE as Record<string, string>)[this.kind] ?? "";
  }

  /** Facts for repair, such as `did_you_mean`, `rule_id`, `remedy`. */
  get details(): Readonly<Record<string, unknown>> {
    return this.reason.details ?? {};
  }

  /** Whether the very same call may succeed later. */
  get retryable(): boolean {
    return this.reason.retryable;
  }

  /** How long to wait; 0 when waiting does not help or is unknown. */
  get retryAfterMs(): number {
    return this.reason.retryAfter === undefined ? 0 : durationMs(this.reason.retryAfter);
  }

  /** Every broken rule of the input schema, for the model to repair the call from. */
  get violations(): readonly Violation[] {
    return this.reason.violations;
  }

  /** The approval that a person must grant, of APPROVAL_REQUIRED; empty of others. */
  get approvalId(): string {
    return this.reason.approval?.approvalId || this.textOf("approval_id");
  }

  /** What an operator could change so that the call is allowed, of POLICY_DENIED and its like; empty where nothing is known. */
  get remedy(): string {
    return this.reason.rule?.remedy || this.textOf("remedy");
  }

  private textOf(name: string): string {
    const value = this.details[name];
    return typeof value === "string" ? value : "";
  }
}
