import type { ToolResult } from "../../../gen/ts/toolhub/v1/result_pb.js";
import { valueOf } from "./call.js";
import { CallFailed } from "./failures.js";

/** An entry of `tool_calls` of OpenAI's Chat Completions. */
export interface OpenAIToolCall {
  id: string;
  type?: "function";
  function: { name: string; arguments: string };
}

/** A `function_call` item of OpenAI's Responses. */
export interface OpenAIFunctionCall {
  type: "function_call";
  call_id: string;
  name: string;
  arguments: string;
}

/** A `tool_use` block of Anthropic's Messages. */
export interface AnthropicToolUse {
  type: "tool_use";
  id: string;
  name: string;
  input: unknown;
}

/** A `FunctionCall` of Gemini. */
export interface GeminiFunctionCall {
  id?: string;
  name?: string;
  args?: { [name: string]: unknown };
}

/** A part of Gemini with a call. */
export interface GeminiPart {
  functionCall?: GeminiFunctionCall;
}

export type ModelToolCall = OpenAIToolCall | OpenAIFunctionCall | AnthropicToolUse | GeminiPart | GeminiFunctionCall;

/** The message that answers a tool call, in the form of its API. */
export type ToolMessage =
  | { role: "tool"; tool_call_id: string; content: string }
  | { type: "function_call_output"; call_id: string; output: string }
  | { type: "tool_result"; tool_use_id: string; content: string; is_error?: true }
  | { functionResponse: { id?: string; name: string; response: { output: string } | { error: string } } };

interface Asked {
  name: string;
  /** Undefined: what the model wrote is no JSON object. */
  args: { [name: string]: unknown } | undefined;
  /** Of the definitions for the interface that such calls come from. */
  form: "openai" | "anthropic" | "gemini";
  answer: (text: string, failed: boolean) => ToolMessage;
}

export const NO_OBJECT =
  "INVALID_INPUT: The arguments are not a JSON object. Send one object with a name for each argument, and nothing around it.";

/** What a model asks for, and how to answer it. */
export function readToolCall(call: ModelToolCall): Asked {
  if (!("type" in call) && !("function" in call)) return ofGemini(call);
  if (call.type === "tool_use") {
    return {
      name: call.name,
      args: objectOf(call.input),
      form: "anthropic",
      answer: (content, failed) => ({
        type: "tool_result",
        tool_use_id: call.id,
        content,
        ...(failed ? { is_error: true as const } : {}),
      }),
    };
  }
  if (call.type === "function_call") {
    return {
      name: call.name,
      args: parsed(call.arguments),
      form: "openai",
      answer: (output) => ({ type: "function_call_output", call_id: call.call_id, output }),
    };
  }
  return {
    name: call.function.name,
    args: parsed(call.function.arguments),
    form: "openai",
    answer: (content) => ({ role: "tool", tool_call_id: call.id, content }),
  };
}

function ofGemini(call: GeminiPart | GeminiFunctionCall): Asked {
  const asked: GeminiFunctionCall = "functionCall" in call ? (call.functionCall ?? {}) : (call as GeminiFunctionCall);
  const { id, name = "", args = {} } = asked;
  return {
    name,
    args: objectOf(args),
    form: "gemini",
    answer: (text, failed) => ({
      functionResponse: {
        ...(id === undefined ? {} : { id }),
        name,
        response: failed ? { error: text } : { output: text },
      },
    }),
  };
}

/** What a model is shown of a result: its JSON, or what went wrong and what to do about it. */
export function textOf(result: ToolResult): string {
  try {
    const value = valueOf(result);
    if (value !== undefined) return JSON.stringify(value);
    return JSON.stringify({ job_id: result.job?.jobId, note: "The call goes on as a job; ask core/job.status for it." });
  } catch (error) {
    if (!(error instanceof CallFailed)) throw error;
    const facts = Object.entries(error.details).filter(([name]) => name !== "remedy" && name !== "policy_revision");
    const lines = [`${error.kind}: ${error.message}`];
    if (facts.length > 0) lines.push(JSON.stringify(Object.fromEntries(facts)));
    if (error.advice) lines.push(error.advice);
    return lines.join("\n");
  }
}

function parsed(text: string): Asked["args"] {
  try {
    return objectOf(JSON.parse(text || "{}"));
  } catch {
    return undefined;
  }
}

function objectOf(value: unknown): Asked["args"] {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Asked["args"]) : undefined;
}
