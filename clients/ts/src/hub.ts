import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { type Client, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { type ExecContextSchema, InvokeMode, type ToolIntent, ToolIntentSchema } from "../../../gen/ts/toolhub/v1/call_pb.js";
import { ErrorKind, type ToolError } from "../../../gen/ts/toolhub/v1/error_pb.js";
import { JobService } from "../../../gen/ts/toolhub/v1/job_service_pb.js";
import type { Job, JobStatus } from "../../../gen/ts/toolhub/v1/job_pb.js";
import type { Plan } from "../../../gen/ts/toolhub/v1/plan_pb.js";
import type { Chunk, Progress } from "../../../gen/ts/toolhub/v1/progress_pb.js";
import type { ToolResult } from "../../../gen/ts/toolhub/v1/result_pb.js";
import { ToolService } from "../../../gen/ts/toolhub/v1/tool_service_pb.js";
import { ADVICE } from "./errors.js";
import { watchJob } from "./jobs.js";

export type JsonObject = { [name: string]: unknown };
type Context = MessageInitShape<typeof ExecContextSchema>;

/** How to reach a hub. */
export interface Config {
  /** Sent with every RPC. Absent: none. */
  apiKey?: string;
  /** What every call is made under unless it brings its own. */
  context?: Context;
}

/** What to do and why. Only `tool` is required. */
export interface Call {
  tool: string;
  args?: JsonObject;
  purpose?: string;
  idempotencyKey?: string;
  planDigest?: string;
  approvalId?: string;
  context?: Context;
  signal?: AbortSignal;
}

/** A call was judged or ran and did not succeed. `message` is the hub's, for the model. */
export class CallFailed extends Error {
  constructor(
    readonly reason: ToolError,
    readonly callId: string,
  ) {
    super(reason.message);
    this.name = "CallFailed";
  }

  /** Such as `POLICY_DENIED`. */
  get kind(): string {
    return ErrorKind[this.reason.kind] ?? "INTERNAL";
  }

  /** What a model should do about an error of this kind; empty for a kind of a newer hub. */
  get advice(): string {
    return (ADVICE as Record<string, string>)[this.kind] ?? "";
  }
}

/** The tool's answer. Throws CallFailed when the call did not succeed; undefined when it became a job. */
export function valueOf(result: ToolResult): unknown {
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

/** Connect to the hub at `address`, such as `http://127.0.0.1:50051` or `https://hub.example.com`. */
export function connect(address: string, config: Config = {}): Hub {
  const authorize: Interceptor = (next) => (request) => {
    if (config.apiKey) request.header.set("authorization", `Bearer ${config.apiKey}`);
    return next(request);
  };
  const transport = createGrpcTransport({ baseUrl: address, interceptors: [authorize] });
  return new Hub(createClient(ToolService, transport), createClient(JobService, transport), config.context ?? {});
}

/** A connected hub. `tools` and `jobs` are the generated clients, for what has no method here. */
export class Hub {
  constructor(
    readonly tools: Client<typeof ToolService>,
    readonly jobs: Client<typeof JobService>,
    private readonly context: Context,
  ) {}

  /** Make one call. A refused or failed call is a result with `ok = false`; `valueOf` makes it an exception. */
  async invoke(call: Call): Promise<ToolResult> {
    const response = await this.tools.invoke(this.request(call), options(call));
    if (response.outcome.case !== "result") throw new TypeError("the hub answered an execution without a result");
    return response.outcome.value;
  }

  /** What `invoke` would do. Its `planDigest`, given to `invoke`, commits exactly that. */
  async dryRun(call: Call): Promise<Plan> {
    const response = await this.tools.invoke({ ...this.request(call), mode: InvokeMode.DRY_RUN }, options(call));
    if (response.outcome.case !== "plan") throw new TypeError("the hub answered a dry run without a plan");
    return response.outcome.value;
  }

  /** Make one call and see it happen; the result comes last. Leaving the loop early cancels the call. */
  async *invokeStream(call: Call): AsyncGenerator<Progress | Chunk | ToolResult> {
    for await (const { event } of this.tools.invokeStream(this.request(call), options(call))) {
      if (event.case !== undefined && event.case !== "plan") yield event.value;
    }
  }

  /** Have a call made as a job, which goes on without its caller. A refused call is a job that has failed. */
  async submitJob(call: Call): Promise<Job> {
    const { job } = await this.jobs.submitJob(this.request(call), options(call));
    if (job === undefined) throw new TypeError("the hub answered a submission without a job");
    return job;
  }

  /** Every status of a job to its final one, across broken connections. */
  watchJob(jobId: string, afterSequence = 0n): AsyncGenerator<JobStatus> {
    return watchJob(this.jobs, jobId, afterSequence);
  }

  private request(call: Call) {
    return {
      intent: intentOf(call),
      context: call.context ?? this.context,
      planDigest: call.planDigest ?? "",
      approvalId: call.approvalId ?? "",
    };
  }
}

function options(call: Call): { signal?: AbortSignal } {
  return call.signal ? { signal: call.signal } : {};
}

function intentOf(call: Call): ToolIntent {
  return create(ToolIntentSchema, {
    tool: call.tool,
    args: { case: "argsJson", value: new TextEncoder().encode(JSON.stringify(call.args ?? {})) },
    purpose: call.purpose ?? "",
    idempotencyKey: call.idempotencyKey ?? "",
  });
}
