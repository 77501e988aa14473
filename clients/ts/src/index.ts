/** A thin client of tool-hub. */
export { CallFailed, connect, Hub, valueOf } from "./hub.js";
export type { Call, Config } from "./hub.js";
export { JobState } from "../../../gen/ts/toolhub/v1/job_state_pb.js";
export { isFinal, watchJob } from "./jobs.js";
export { ADVICE, Reason } from "./errors.js";
export type { ErrorKindName, ReasonName } from "./errors.js";
