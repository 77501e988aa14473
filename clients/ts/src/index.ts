/** A client of tool-hub. */
export { connect, Hub } from "./hub.js";
export type { DryRun, HubConfig, Judgement } from "./hub.js";
export { valueOf } from "./call.js";
export type { Answer, Call, Context, JsonObject } from "./call.js";
export type { CallLimits } from "./limits.js";
export type { Config } from "./connection.js";
export { DigestMismatch } from "./artifacts.js";
export { CallFailed, ConnectionLost, HubError } from "./failures.js";
export { JobState } from "../../../gen/ts/toolhub/v1/job_state_pb.js";
export { isFinal } from "./jobs.js";
export type { WatchJobOptions, WatchJobsFilter } from "./jobs.js";
export type { Content, Sliceable } from "./uploads.js";
export type { ResumeOptions, WatchOptions } from "./watches.js";
export { ADVICE, Reason } from "./errors.js";
export type { ErrorKindName, ReasonName } from "./errors.js";
export type { AnthropicToolUse, ModelToolCall, OpenAIFunctionCall, OpenAIToolCall, ToolMessage } from "./tool_calls.js";
