import { type MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";

import type { ToolResult } from "../../../gen/ts/toolhub/v1/result_pb.js";
import type { InvokeSessionRequestSchema, SessionCallSchema, ToolService } from "../../../gen/ts/toolhub/v1/tool_service_pb.js";

/** Calls that a hub takes from one session at a time; the next one waits here. */
export const MAX_IN_FLIGHT = 256;

type SessionCall = MessageInitShape<typeof SessionCallSchema>;
type Message = { calls: SessionCall[]; cancelCallIds: string[] };
interface Pending {
  resolve: (result: ToolResult) => void;
  reject: (why: unknown) => void;
}

/**
 * Many calls over one stream: each goes through the whole chain of the hub, and costs a third of an RPC of its own.
 * `close` it; what is in flight finishes first.
 */
export class Session {
  private readonly pending = new Map<string, Pending>();
  private readonly waiting: (() => void)[] = [];
  private next: Message = { calls: [], cancelCallIds: [] };
  private number = 0;
  private inFlight = 0;
  private closing = false;
  private broken: { why: unknown } | undefined;
  private wake: () => void = () => {};
  private readonly ended: Promise<void>;

  constructor(tools: Client<typeof ToolService>) {
    this.ended = this.receive(tools);
  }

  /** The result of one call. When the stream breaks, it throws: the call may have had its effect, and is not repeated. */
  async invoke(call: SessionCall, signal?: AbortSignal): Promise<ToolResult> {
    if (this.closing) throw new Error("the session is closed");
    while (this.inFlight >= MAX_IN_FLIGHT) await new Promise<void>((resolve) => this.waiting.push(resolve));
    signal?.throwIfAborted();
    if (this.broken !== undefined) throw this.broken.why;
    this.inFlight += 1;
    const callId = `c${(this.number += 1)}`;
    const cancel = () => {
      this.next.cancelCallIds.push(callId);
      this.wake();
      this.pending.get(callId)?.reject(signal?.reason);
    };
    try {
      return await new Promise<ToolResult>((resolve, reject) => {
        this.pending.set(callId, { resolve, reject });
        this.next.calls.push({ ...call, callId } as SessionCall);
        this.wake();
        signal?.addEventListener("abort", cancel, { once: true });
      });
    } finally {
      signal?.removeEventListener("abort", cancel);
      this.pending.delete(callId);
      this.inFlight -= 1;
      this.waiting.shift()?.();
    }
  }

  /** Ends the session once what is in flight has finished. */
  async close(): Promise<void> {
    this.closing = true;
    this.wake();
    await this.ended;
  }

  /** What has gathered while the message before was sent goes out in one. */
  private async *messages(): AsyncGenerator<MessageInitShape<typeof InvokeSessionRequestSchema>> {
    for (;;) {
      if (this.next.calls.length > 0 || this.next.cancelCallIds.length > 0) {
        const message = this.next;
        this.next = { calls: [], cancelCallIds: [] };
        yield message;
      } else if (this.closing) {
        return;
      } else {
        await new Promise<void>((resolve) => (this.wake = resolve));
      }
    }
  }

  private async receive(tools: Client<typeof ToolService>): Promise<void> {
    let why: unknown = new Error("the hub ended the session before it had answered");
    try {
      for await (const { events } of tools.invokeSession(this.messages())) {
        for (const { callId, event } of events) {
          if (event.case === "result") this.pending.get(callId)?.resolve(event.value);
        }
      }
    } catch (error) {
      why = error;
    }
    this.broken = { why };
    for (const each of this.pending.values()) each.reject(why);
  }
}
