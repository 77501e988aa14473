import { setTimeout as sleep } from "node:timers/promises";

import { type CallOptions, Code, ConnectError } from "@connectrpc/connect";

import { begunAgain, pauseAfter } from "./connection.js";
import { HubError } from "./failures.js";

/** How a watch ends that may be begun again: a hub that leaves, is killed or is overloaded, a connection that breaks. */
const BROKEN: ReadonlySet<Code> = new Set([
  Code.Aborted,
  Code.Canceled,
  Code.Internal,
  Code.ResourceExhausted,
  Code.Unavailable,
]);

/** How a watch is held. */
export interface WatchOptions {
  /** Ends it, also while nothing comes; it throws the signal's reason then. */
  signal?: AbortSignal;
  /** Streams in a row that may bring nothing before it throws: 16 by default. */
  attempts?: number;
}

/** Options of a watch that resumes after a token. */
export interface ResumeOptions extends WatchOptions {
  /** That of the last message that had one. */
  resumeToken?: string;
}

/** The messages of one stream, which is cancelled when the reader leaves: connect alone would let it run on. */
export async function* until<Message>(
  open: (signal: AbortSignal) => AsyncIterable<Message>,
  signal?: AbortSignal,
): AsyncGenerator<Message> {
  signal?.throwIfAborted();
  const left = new AbortController();
  const abort = () => left.abort(signal?.reason);
  signal?.addEventListener("abort", abort, { once: true });
  try {
    yield* open(left.signal);
  } finally {
    signal?.removeEventListener("abort", abort);
    left.abort();
  }
}

/** A stream that its reader begins again, and nobody else. */
export function once<Message>(open: (options: CallOptions) => AsyncIterable<Message>) {
  return (signal: AbortSignal) => open({ signal, contextValues: begunAgain() });
}

/**
 * The messages of stream after stream, each opened behind the last message seen. It throws what the hub refuses, and
 * when `attempts` in a row brought nothing. `ended` says whether a stream that the hub ended in order, after so many
 * messages, was the last.
 */
export async function* watch<Message>(
  what: string,
  open: (options: CallOptions) => AsyncIterable<Message>,
  { signal, attempts = 16 }: WatchOptions,
  ended: (messages: number) => boolean = () => false,
): AsyncGenerator<Message> {
  for (let failed = 1; ; failed += 1) {
    let broken: unknown = new Error(`the hub ends the watch of ${what}`);
    let came = 0;
    try {
      for await (const message of until(once(open), signal)) {
        came += 1;
        yield message;
      }
      if (ended(came)) return;
    } catch (error) {
      signal?.throwIfAborted();
      if (!BROKEN.has(ConnectError.from(error).code) || isFailure(error)) throw error;
      broken = error;
    }
    if (came > 0) failed = 1;
    if (failed >= attempts) throw broken;
    await pause(pauseAfter(failed, broken), signal);
  }
}

/** Whether the hub itself failed, and would again: a connection that breaks is Internal, too, but has no reason. */
function isFailure(error: unknown): boolean {
  return error instanceof HubError && error.code === Code.Internal && error.reason !== "";
}

/** Waits so many milliseconds; throws the reason of a signal that ends it before. */
export async function pause(forMs: number, signal?: AbortSignal): Promise<void> {
  await sleep(forMs, undefined, signal && { signal }).catch((interrupted: unknown) => {
    signal?.throwIfAborted();
    throw interrupted;
  });
}

/** The same for messages that have tokens: each new stream resumes after the last one. */
export async function* resumed<Message extends { resumeToken: string }>(
  what: string,
  open: (resumeToken: string, options: CallOptions) => AsyncIterable<Message>,
  { resumeToken = "", ...options }: ResumeOptions,
): AsyncGenerator<Message> {
  let token = resumeToken;
  for await (const message of watch(what, (call) => open(token, call), options)) {
    token = message.resumeToken || token;
    yield message;
  }
}
