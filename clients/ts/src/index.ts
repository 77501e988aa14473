/** A client of tool-hub. */
export { connect, Hub, valueOf } from "./hub.js";
export type { Call, DryRun, HubConfig, JsonObject } from "./hub.js";
export type { Config } from "./connection.js";
export { DigestMismatch } from "./artifacts.js";
export { CallFailed, HubError } from "./failures.js";
export { JobState } from "../../../gen/ts/toolhub/v1/job_state_pb.js";
export { isFinal, watchJob } from "./jobs.js";
export { ADVICE, Reason } from "./errors.js";
export type { ErrorKindName, ReasonName } from "./errors.js";
export type { AnthropicToolUse, ModelToolCall, OpenAIFunctionCall, OpenAIToolCall, ToolMessage } from "./tool_calls.js";
