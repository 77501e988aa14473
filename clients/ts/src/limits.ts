import { type CallOptions, Code, ConnectError } from "@connectrpc/connect";

import { HubError } from "./failures.js";

/** How long a call may take, and what ends it before. */
export interface CallLimits {
  /**
   * Milliseconds for the whole call: waiting for a hub, repeats and all pages included. The hub gets it as the deadline of
   * the RPC. What takes longer is a result with TIMEOUT, or throws a HubError with `Code.DeadlineExceeded`.
   */
  timeoutMs?: number | undefined;
  /** Ends it; it throws then. */
  signal?: AbortSignal | undefined;
}

/** As long as timers of Node run. */
const LONGEST_MS = 2 ** 31 - 1;

/** The options of RPC after RPC of one call: what is left of its time. Throws RangeError for a time that is none. */
export function rpcOptions({ timeoutMs, signal }: CallLimits): () => CallOptions {
  const own = signal === undefined ? {} : { signal };
  if (timeoutMs === undefined) return () => own;
  const untilMs = performance.now() + checked(timeoutMs);
  return () => ({ ...own, timeoutMs: Math.max(1, Math.ceil(untilMs - performance.now())) });
}

/** Work of several RPCs, which the signal that it gets ends in time. */
export async function within<Done>(
  address: string,
  { timeoutMs, signal }: CallLimits,
  work: (signal?: AbortSignal) => Promise<Done>,
): Promise<Done> {
  if (timeoutMs === undefined) return work(signal);
  const late = new ConnectError(`it took longer than its timeout of ${checked(timeoutMs)} ms`, Code.DeadlineExceeded);
  const ended = new AbortController();
  const timer = setTimeout(() => ended.abort(new HubError(late, address)), timeoutMs);
  try {
    return await work(signal === undefined ? ended.signal : AbortSignal.any([signal, ended.signal]));
  } finally {
    clearTimeout(timer);
  }
}

function checked(timeoutMs: number): number {
  if (timeoutMs > 0 && timeoutMs <= LONGEST_MS) return timeoutMs;
  throw new RangeError(`timeoutMs is ${timeoutMs}: give milliseconds from 1 to ${LONGEST_MS}, or leave it out for no limit`);
}
