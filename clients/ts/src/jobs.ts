import { setTimeout as sleep } from "node:timers/promises";

import { type Client, Code, ConnectError } from "@connectrpc/connect";

import type { JobStatus } from "../../../gen/ts/toolhub/v1/job_pb.js";
import type { JobService } from "../../../gen/ts/toolhub/v1/job_service_pb.js";
import { JobState } from "../../../gen/ts/toolhub/v1/job_state_pb.js";
import { pauseAfter } from "./connection.js";
import { hubError } from "./failures.js";

const BROKEN: ReadonlySet<Code> = new Set([
  Code.Aborted,
  Code.Canceled,
  Code.Internal,
  Code.ResourceExhausted,
  Code.Unavailable,
]);
const FINAL: ReadonlySet<JobState> = new Set([
  JobState.SUCCEEDED,
  JobState.FAILED,
  JobState.CANCELLED,
  JobState.TIMED_OUT,
  JobState.LOST,
]);

/** Whether a job in this state is over. */
export function isFinal(state: JobState): boolean {
  return FINAL.has(state);
}

/**
 * Every status after `afterSequence`, to a final one; none when that was the final one already. It reconnects with the
 * last sequence it saw, so nothing is missed and nothing is seen twice; it throws when `attempts` in a row brought
 * nothing.
 */
export async function* watchJob(
  jobs: Client<typeof JobService>,
  jobId: string,
  afterSequence = 0n,
  attempts = 16,
): AsyncGenerator<JobStatus> {
  let seen = afterSequence;
  let failed = 0;
  for (;;) {
    let broken: unknown = new Error(`the hub ends the watch of job ${jobId} before the job is over`);
    const before = seen;
    try {
      for await (const { status } of jobs.watchJob({ jobId, afterSequence: seen })) {
        if (status === undefined) continue;
        seen = status.sequence;
        failed = 0;
        yield status;
        if (isFinal(status.state)) return;
      }
      if (seen === before && seen > 0n) return; // a stream ends by itself only after the final status, seen before
    } catch (error) {
      if (!BROKEN.has(ConnectError.from(error).code)) throw error;
      broken = hubError(error, "");
    }
    failed += 1;
    if (failed >= attempts) throw broken;
    await sleep(pauseAfter(failed, broken));
  }
}
