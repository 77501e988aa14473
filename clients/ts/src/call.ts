import { create, type MessageInitShape } from "@bufbuild/protobuf";

import {
  ArgsForm,
  type ExecContextSchema,
  type ToolIntent,
  ToolIntentSchema,
} from "../../../gen/ts/toolhub/v1/call_pb.js";
import type { ToolResult } from "../../../gen/ts/toolhub/v1/result_pb.js";
import { CallFailed } from "./failures.js";
import type { CallLimits } from "./limits.js";

export type JsonObject = { [name: string]: unknown };
/** The circumstances of a call: who asked for what piece of work, and what it may spend. */
export type Context = Exclude<MessageInitShape<typeof ExecContextSchema>, { $typeName: string }>;

/** By form of export: how the hub reads the arguments. */
const ARGS_FORMS = {
  openai: ArgsForm.OPENAI,
  openai_strict: ArgsForm.OPENAI_STRICT,
  anthropic: ArgsForm.ANTHROPIC,
  gemini: ArgsForm.GEMINI,
  mcp: ArgsForm.MCP,
} as const;

/** What to do and why, and how long it may take. Only `tool` is required. */
export interface Call extends CallLimits {
  tool: string;
  args?: JsonObject;
  /** In a sentence; required by tools that change something. It goes into the audit log. */
  purpose?: string;
  /** The same key and arguments have one effect, however often they are sent. */
  idempotencyKey?: string;
  /** Of a plan that a dry run has shown; `commit` sends it. */
  planDigest?: string;
  /** Of an approval that a person has granted. */
  approvalId?: string;
  /** `ToolSpec.digest` of the tool as the model was shown it: with another definition the call is refused. */
  expectedToolDigest?: string;
  /** The form of `export` whose definition a model wrote `args` for; `runToolCall` sets it. Without, a program wrote them. */
  argsForm?: keyof typeof ARGS_FORMS;
  /** In the place of the hub's. Without a `requestId` it has the hub's, and with it the workspace. */
  context?: Context;
}

/** The result of a call, whose value is of a type that the caller names. */
export type Answer<Value = unknown> = ToolResult & {
  /** As `valueOf` gives it. Nothing checks that it is of that type; `valueOf` with a schema does. */
  readonly value: Value;
};

/** The same result, with its value beside its fields. */
export function answerOf<Value>(result: ToolResult): Answer<Value> {
  return Object.defineProperty(result, "value", { get: () => valueOf(result), configurable: true }) as Answer<Value>;
}

/** The call as a message. Throws TypeError for arguments that are no JSON. */
export function intentOf(call: Call, idempotencyKey: string): ToolIntent {
  return create(ToolIntentSchema, {
    tool: call.tool,
    args: { case: "argsJson", value: new TextEncoder().encode(JSON.stringify(call.args ?? {})) },
    purpose: call.purpose ?? "",
    expectedToolDigest: call.expectedToolDigest ?? "",
    idempotencyKey,
    argsForm: call.argsForm === undefined ? ArgsForm.UNSPECIFIED : ARGS_FORMS[call.argsForm],
  });
}

/**
 * The tool's answer. Throws CallFailed when the call did not succeed; undefined when it became a job. With a schema, such
 * as one of zod, what its `parse` makes of it.
 */
export function valueOf<Value>(result: Answer<Value>): Value;
export function valueOf<Value = unknown>(result: ToolResult): Value;
export function valueOf<Value>(result: ToolResult, schema: { parse: (value: unknown) => Value }): Value;
export function valueOf(result: ToolResult, schema?: { parse: (value: unknown) => unknown }): unknown {
  const value = plainValueOf(result);
  return schema === undefined ? value : schema.parse(value);
}

function plainValueOf(result: ToolResult): unknown {
  if (!result.ok) {
    if (result.error === undefined) throw new TypeError("a failed result without an error");
    throw new CallFailed(result.error, result.callId);
  }
  switch (result.result.case) {
    case "resultJson":
      return JSON.parse(new TextDecoder().decode(result.result.value));
    case "resultStruct":
      return result.result.value;
    default:
      return undefined;
  }
}
