import type { MessageInitShape } from "@bufbuild/protobuf";
import type { CallOptions, Client } from "@connectrpc/connect";

import type { JobStatus } from "../../../gen/ts/toolhub/v1/job_pb.js";
import type { JobService, WatchJobsRequestSchema } from "../../../gen/ts/toolhub/v1/job_service_pb.js";
import { JobState } from "../../../gen/ts/toolhub/v1/job_state_pb.js";
import { watch, type WatchOptions } from "./watches.js";

/** Jobs whose sequence one request may name. */
const RESUMED_MAX = 1_024;
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

/** Where a watch of one job begins: by default with the state of now. */
export interface WatchJobOptions extends WatchOptions {
  /** Behind that sequence, the last one seen. */
  afterSequence?: bigint;
  /** With its first entry: its whole history. */
  fromFirst?: boolean;
}

/** Which jobs: those named, or all that match. */
export type WatchJobsFilter = Omit<
  Exclude<MessageInitShape<typeof WatchJobsRequestSchema>, { $typeName: string }>,
  "resultEncoding"
>;

/**
 * Every status of a job to its final one; none where `afterSequence` was the final one already. It reconnects with the
 * last sequence that it saw, so nothing is missed and nothing is seen twice.
 */
export async function* watchJob(
  jobs: Client<typeof JobService>,
  jobId: string,
  { afterSequence = 0n, fromFirst = false, ...options }: WatchJobOptions = {},
): AsyncGenerator<JobStatus> {
  let seen = afterSequence;
  const open = (call: CallOptions) => jobs.watchJob({ jobId, afterSequence: seen, fromFirst }, call);
  // A stream ends by itself only after the final status, seen before.
  const ended = (messages: number) => messages === 0 && seen > 0n;
  for await (const { status } of watch(`job ${jobId}`, open, options, ended)) {
    if (status === undefined) continue;
    seen = status.sequence;
    yield status;
    if (isFinal(status.state)) return;
  }
}

/** The same of several jobs: it ends once every named one is over, and never where none is named. */
export async function* watchJobs(
  jobs: Client<typeof JobService>,
  where: WatchJobsFilter,
  options: WatchOptions,
): AsyncGenerator<JobStatus> {
  const waitsFor = new Set(where.jobIds);
  const isNamed = waitsFor.size > 0;
  const seen = new Map(Object.entries(where.afterSequences ?? {}));
  const open = (call: CallOptions) => {
    // Those that are left out begin with their state of now.
    const afterSequences = Object.fromEntries([...seen].slice(-RESUMED_MAX));
    return jobs.watchJobs({ ...where, jobIds: [...waitsFor], afterSequences }, call);
  };
  for await (const { status } of watch("several jobs", open, options, () => isNamed)) {
    if (status === undefined || status.sequence <= (seen.get(status.jobId) ?? 0n)) continue;
    if (isFinal(status.state)) {
      waitsFor.delete(status.jobId);
      seen.delete(status.jobId);
    } else {
      seen.set(status.jobId, status.sequence);
    }
    yield status;
    if (isNamed && waitsFor.size === 0) return;
  }
}
