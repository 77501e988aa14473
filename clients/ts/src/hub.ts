import { randomUUID } from "node:crypto";

import type { MessageInitShape } from "@bufbuild/protobuf";
import { type CallOptions, type Client, createClient, type Transport } from "@connectrpc/connect";

import { type Approval, Decision } from "../../../gen/ts/toolhub/v1/approval_pb.js";
import { ApprovalService, type ListApprovalsRequestSchema, type WatchApprovalsResponse } from "../../../gen/ts/toolhub/v1/approval_service_pb.js";
import type { Artifact } from "../../../gen/ts/toolhub/v1/artifact_pb.js";
import { type ArtifactHeaderSchema, ArtifactService, type ListArtifactsRequestSchema } from "../../../gen/ts/toolhub/v1/artifact_service_pb.js";
import { AuditService } from "../../../gen/ts/toolhub/v1/audit_service_pb.js";
import { InvokeMode } from "../../../gen/ts/toolhub/v1/call_pb.js";
import type { Job, JobStatus } from "../../../gen/ts/toolhub/v1/job_pb.js";
import { JobService, type ListJobsRequestSchema } from "../../../gen/ts/toolhub/v1/job_service_pb.js";
import type { Plan } from "../../../gen/ts/toolhub/v1/plan_pb.js";
import type { Chunk, Progress } from "../../../gen/ts/toolhub/v1/progress_pb.js";
import { RegistryService } from "../../../gen/ts/toolhub/v1/registry_service_pb.js";
import type { ToolFilterSchema, ToolSpec } from "../../../gen/ts/toolhub/v1/tool_pb.js";
import {
  ExportFormat,
  type GetServerInfoResponse,
  type SearchHit,
  ToolService,
  type ToolServiceWatchToolsResponse,
} from "../../../gen/ts/toolhub/v1/tool_service_pb.js";
import { readArtifact } from "./artifacts.js";
import { type Answer, answerOf, type Call, type Context, intentOf, type JsonObject } from "./call.js";
import { type Config, target, transportTo } from "./connection.js";
import { CallFailed } from "./failures.js";
import { isFinal, watchJob, type WatchJobOptions, watchJobs, type WatchJobsFilter } from "./jobs.js";
import { type CallLimits, rpcOptions, within } from "./limits.js";
import { Session } from "./session.js";
import { type ModelToolCall, NO_OBJECT, readToolCall, textOf, type ToolMessage } from "./tool_calls.js";
import { type Content, putArtifact } from "./uploads.js";
import { type ResumeOptions, resumed, until, type WatchOptions } from "./watches.js";

/** The fields of a request for a list, without its page. */
type Filter<
  Schema extends typeof ListJobsRequestSchema | typeof ListApprovalsRequestSchema | typeof ListArtifactsRequestSchema,
> = Omit<Exclude<MessageInitShape<Schema>, { $typeName: string }>, "pageToken">;

type ToolFilter = MessageInitShape<typeof ToolFilterSchema>;

const STUBS = { python: ExportFormat.PYTHON_STUBS, typescript: ExportFormat.TYPESCRIPT } as const;
const FORMATS = {
  openai: ExportFormat.OPENAI,
  openai_strict: ExportFormat.OPENAI_STRICT,
  anthropic: ExportFormat.ANTHROPIC,
  gemini: ExportFormat.GEMINI,
  mcp: ExportFormat.MCP,
} as const;

/**
 * Connect to the hub at `address`: `https://host`, `http://host:port`, `host:port`; left out: TOOLHUB_ADDRESS, else
 * 127.0.0.1:50051. The first call connects.
 */
export function connect(address?: string, config: HubConfig = {}): Hub {
  const where = target(address, config);
  const context = { ...config.context };
  context.requestId ||= process.env["TOOLHUB_REQUEST_ID"] || `req_${randomUUID()}`;
  return new Hub(transportTo(where, config), where.url, context, config.automaticKeys ?? false);
}

/** How to reach a hub, and under which circumstances to call it. */
export interface HubConfig extends Config {
  /**
   * What every call is made under unless it brings its own. Without a `requestId` all calls share that of
   * TOOLHUB_REQUEST_ID, or one that is made up here, and with it a workspace.
   */
  context?: Context;
}

/** What a call would do; `commit` does exactly this. */
export interface DryRun {
  plan: Plan;
  /** What would stop it; PLAN_REQUIRED, which committing answers, does not count. */
  error: CallFailed | undefined;
  call: Call;
}

/** How an approval is decided. */
export interface Judgement extends CallLimits {
  comment?: string;
  /** To the question of the approval. */
  answer?: JsonObject;
}

/**
 * A connected hub. Conditions (`where`) come before options, which are always the last argument, with `timeoutMs` and
 * `signal`; of calls they stand in the `Call`. The generated clients stand beside, with the credential and
 * retries of the others.
 */
export class Hub {
  readonly tools: Client<typeof ToolService>;
  readonly jobs: Client<typeof JobService>;
  readonly artifacts: Client<typeof ArtifactService>;
  readonly approvals: Client<typeof ApprovalService>;
  readonly registry: Client<typeof RegistryService>;
  readonly audit: Client<typeof AuditService>;
  /** What was exported under which name, in which form last. */
  private readonly exported = new Map<string, { tool: string; form: keyof typeof FORMATS }>();

  constructor(
    transport: Transport,
    readonly address: string,
    readonly context: Context,
    private readonly automaticKeys: boolean,
  ) {
    this.tools = createClient(ToolService, transport);
    this.jobs = createClient(JobService, transport);
    this.artifacts = createClient(ArtifactService, transport);
    this.approvals = createClient(ApprovalService, transport);
    this.registry = createClient(RegistryService, transport);
    this.audit = createClient(AuditService, transport);
  }

  /** Make one call. A refused or failed call is a result with `ok = false`; `value` throws it as CallFailed. */
  async invoke<Value = unknown>(call: Call): Promise<Answer<Value>> {
    const response = await this.tools.invoke(this.request(call), rpcOptions(call)());
    if (response.outcome.case !== "result") throw new TypeError("the hub answered an execution without a result");
    return answerOf(response.outcome.value);
  }

  /** What `invoke` would do. Nothing happens. */
  async dryRun(call: Call): Promise<DryRun> {
    const keyed = { ...call, idempotencyKey: this.keyOf(call) };
    const response = await this.tools.invoke({ ...this.request(keyed), mode: InvokeMode.DRY_RUN }, rpcOptions(call)());
    if (response.outcome.case !== "plan") throw new TypeError("the hub answered a dry run without a plan");
    const plan = response.outcome.value;
    const stopped = plan.planDigest === "" ? plan.steps.find((step) => !step.ok)?.error : undefined;
    return { plan, error: stopped && new CallFailed(stopped, plan.callId), call: keyed };
  }

  /** Do exactly what the dry run has shown; anything else is PLAN_REQUIRED. */
  commit<Value = unknown>(shown: DryRun, limits: CallLimits = {}): Promise<Answer<Value>> {
    return this.invoke({ ...shown.call, ...limits, planDigest: shown.plan.planDigest });
  }

  /** Make one call and see it happen; the result comes last. Leaving the loop early cancels the call. */
  async *invokeStream<Value = unknown>(call: Call): AsyncGenerator<Progress | Chunk | Answer<Value>> {
    const request = this.request(call);
    const limits = rpcOptions(call)();
    for await (const { event } of until((signal) => this.tools.invokeStream(request, { ...limits, signal }), call.signal)) {
      if (event.case === "result") yield answerOf<Value>(event.value);
      else if (event.case !== undefined && event.case !== "plan") yield event.value;
    }
  }

  /** Submit a call as a job, which runs without its caller. A refused call is a job that has failed. */
  async submitJob(call: Call): Promise<Job> {
    const { job } = await this.jobs.submitJob(this.request(call), rpcOptions(call)());
    if (job === undefined) throw new TypeError("the hub answered a submission without a job");
    return job;
  }

  /**
   * Every status of a job to its final one, across broken connections: first the state of now, or what the options say.
   * None where `afterSequence` was the final one already.
   */
  watchJob(jobId: string, options: WatchJobOptions = {}): AsyncGenerator<JobStatus> {
    return watchJob(this.jobs, jobId, options);
  }

  /**
   * The statuses of several jobs as they happen, across broken connections: of those that `jobIds` names, until all are
   * over, or of all that match, those to come included, until the caller leaves.
   */
  watchJobs(where: WatchJobsFilter = {}, options: WatchOptions = {}): AsyncGenerator<JobStatus> {
    return watchJobs(this.jobs, where, options);
  }

  /** One job with its latest status. */
  async getJob(jobId: string, limits: CallLimits = {}): Promise<Job> {
    const { job } = await this.jobs.getJob({ jobId }, rpcOptions(limits)());
    if (job === undefined) throw new TypeError("the hub answered without a job");
    return job;
  }

  /** The caller's jobs, newest first, page by page. */
  listJobs(where: Filter<typeof ListJobsRequestSchema> = {}, limits: CallLimits = {}): AsyncGenerator<Job> {
    return pages(limits, async (pageToken, options) => {
      const page = await this.jobs.listJobs({ ...where, pageToken }, options);
      return [page.jobs, page.nextPageToken];
    });
  }

  /** Wait until a job has ended and return its result, as `invoke` does. When the limits end the wait, the job keeps running. */
  jobResult<Value = unknown>(jobId: string, limits: CallLimits = {}): Promise<Answer<Value>> {
    return within(this.address, limits, async (signal) => {
      for await (const status of this.watchJob(jobId, signal && { signal })) {
        if (isFinal(status.state) && status.result !== undefined) return answerOf<Value>(status.result);
      }
      throw new TypeError("a watched job ended without a result");
    });
  }

  /** Ask a job to stop; the status says whether it already has. A text in the place of the options is the reason. */
  async cancelJob(jobId: string, options: string | ({ reason?: string } & CallLimits) = {}): Promise<JobStatus> {
    const { reason = "", ...limits } = typeof options === "string" ? { reason: options } : options;
    const { status } = await this.jobs.cancelJob({ jobId, reason }, rpcOptions(limits)());
    if (status === undefined) throw new TypeError("the hub answered without a status");
    return status;
  }

  /** Many calls over one stream. */
  session(): { invoke: <Value = unknown>(call: Call) => Promise<Answer<Value>>; close: () => Promise<void> } {
    const session = new Session(this.tools);
    return {
      invoke: <Value>(call: Call) =>
        within(this.address, call, async (signal) => answerOf<Value>(await session.invoke(this.request(call), signal))),
      close: () => session.close(),
    };
  }

  /** Every tool the caller could be allowed, page by page. */
  listTools(where: ToolFilter = {}, limits: CallLimits = {}): AsyncGenerator<ToolSpec> {
    return pages(limits, async (pageToken, options) => {
      const page = await this.tools.listTools({ filter: where, pageToken }, options);
      return [page.tools, page.nextPageToken];
    });
  }

  /**
   * Each change of what `listTools` gives, until the caller leaves. A message that says `reset` wants the tools listed
   * anew: the first one does, unless it goes on with a `resumeToken`, as it does itself across broken connections.
   */
  watchTools(
    where: ToolFilter = {},
    options: ResumeOptions = {},
  ): AsyncGenerator<ToolServiceWatchToolsResponse> {
    return resumed("tools", (resumeToken, call) => this.tools.watchTools({ filter: where, resumeToken }, call), options);
  }

  /** The best hits, at most `limit` (10); 0 means 100. */
  search(query: string, where?: ToolFilter, options?: { limit?: number } & CallLimits): Promise<SearchHit[]>;
  /** The same, with the limit in front. */
  search(query: string, limit: number, where?: ToolFilter): Promise<SearchHit[]>;
  async search(
    query: string,
    first: ToolFilter | number = {},
    second: ToolFilter | ({ limit?: number } & CallLimits) = {},
  ): Promise<SearchHit[]> {
    const [where, options] = typeof first === "number" ? [second as ToolFilter, { limit: first }] : [first, second];
    const { limit = 10, ...limits } = options as { limit?: number } & CallLimits;
    const found: SearchHit[] = [];
    const hits = pages(limits, async (pageToken, rpc) => {
      const page = await this.tools.searchTools({ query, pageSize: limit, filter: where, pageToken }, rpc);
      return [page.hits, page.nextPageToken];
    });
    for await (const hit of hits) {
      found.push(hit);
      if (found.length >= (limit || 100)) break;
    }
    return found;
  }

  /** What the hub is, what it takes and what it offers. */
  async serverInfo(limits: CallLimits = {}): Promise<GetServerInfoResponse> {
    return this.tools.getServerInfo({}, rpcOptions(limits)());
  }

  /** One tool. */
  async getTool(name: string, limits: CallLimits = {}): Promise<ToolSpec> {
    const { tool } = await this.tools.getTool({ name }, rpcOptions(limits)());
    if (tool === undefined) throw new TypeError("the hub answered without a tool");
    return tool;
  }

  /** Definitions for a model, and each exported name's tool. */
  async export(
    form: keyof typeof FORMATS,
    where: ToolFilter = {},
    limits: CallLimits = {},
  ): Promise<{ tools: JsonObject[]; names: { [exported: string]: string } }> {
    const names: { [exported: string]: string } = {};
    const definitions = pages<JsonObject>(limits, async (pageToken, options) => {
      const page = await this.tools.exportTools({ format: FORMATS[form], filter: where, pageToken }, options);
      Object.assign(names, page.names);
      return [JSON.parse(new TextDecoder().decode(page.toolsJson)), page.nextPageToken];
    });
    const tools: JsonObject[] = [];
    for await (const tool of definitions) tools.push(tool);
    for (const [exported, tool] of Object.entries(names)) this.exported.set(exported, { tool, form });
    return { tools, names };
  }

  /** Tools as functions of programs, in the text of that language. */
  async stubs(language: keyof typeof STUBS, where: ToolFilter = {}, limits: CallLimits = {}): Promise<string> {
    const options = rpcOptions(limits);
    let text = "";
    for (let pageToken = "", isFirst = true; isFirst || pageToken !== ""; isFirst = false) {
      const page = await this.tools.exportTools({ format: STUBS[language], filter: where, pageToken }, options());
      text += page.text;
      pageToken = page.nextPageToken;
    }
    return text;
  }

  /**
   * Make a model's tool call and return the message that answers it in the form of its API. The tool is named as any
   * connection has exported it, or by its full name. The arguments are read in the form in which this object has exported
   * the tool, else in the one that belongs to the kind of message: state `argsForm: "openai_strict"` if another connection
   * exported that. A refusal is a message, too, and tells the model what to do: a call that needs a plan is answered with
   * the plan, which the model commits by calling again with `toolhub_plan`.
   */
  async runToolCall(call: ModelToolCall, more: Omit<Call, "tool" | "args"> = {}): Promise<ToolMessage> {
    const asked = readToolCall(call);
    if (asked.args === undefined) return asked.answer(NO_OBJECT, true);
    const { tool, form } = this.exported.get(asked.name) ?? { tool: asked.name, form: asked.form };
    const result = await this.invoke({ argsForm: form, ...more, tool, args: asked.args });
    return asked.answer(textOf(result), !result.ok);
  }

  /**
   * Store bytes, a Blob or a stream of chunks; arguments name it as `{"$artifact": artifactId}`. Bytes and Blobs, such as
   * `await openAsBlob(path)` of node:fs, resume where a connection broke. When it throws, nothing is stored.
   */
  putArtifact(
    content: Content,
    header: MessageInitShape<typeof ArtifactHeaderSchema> = {},
    limits: CallLimits = {},
  ): Promise<Artifact> {
    const told = { ...header, taskId: header.taskId || (this.context.taskId ?? "") };
    return within(this.address, limits, (signal) => putArtifact(this.artifacts, content, told, signal));
  }

  /** An artifact's bytes across broken connections. Throws DigestMismatch before the last chunk. */
  readArtifact(artifactId: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Uint8Array> {
    return readArtifact(this.artifacts, artifactId, signal);
  }

  /** Its bytes at once; for large ones `readArtifact`. */
  getArtifact(artifactId: string, limits: CallLimits = {}): Promise<Uint8Array> {
    return within(this.address, limits, async (signal) => {
      const chunks: Uint8Array[] = [];
      for await (const chunk of this.readArtifact(artifactId, signal && { signal })) chunks.push(chunk);
      return Buffer.concat(chunks);
    });
  }

  /** Page by page, those that expire last first. */
  listArtifacts(where: Filter<typeof ListArtifactsRequestSchema> = {}, limits: CallLimits = {}): AsyncGenerator<Artifact> {
    return pages(limits, async (pageToken, options) => {
      const page = await this.artifacts.listArtifacts({ ...where, pageToken }, options);
      return [page.artifacts, page.nextPageToken];
    });
  }

  /** Remove one of the caller's own before it expires. */
  async deleteArtifact(artifactId: string, limits: CallLimits = {}): Promise<void> {
    await this.artifacts.deleteArtifact({ artifactId }, rpcOptions(limits)());
  }

  /** Newest first, page by page: everybody's for approvers, the caller's own for others. */
  listApprovals(where: Filter<typeof ListApprovalsRequestSchema> = {}, limits: CallLimits = {}): AsyncGenerator<Approval> {
    return pages(limits, async (pageToken, options) => {
      const page = await this.approvals.listApprovals({ ...where, pageToken }, options);
      return [page.approvals, page.nextPageToken];
    });
  }

  /** One approval. */
  async getApproval(approvalId: string, limits: CallLimits = {}): Promise<Approval> {
    const { approval } = await this.approvals.getApproval({ approvalId }, rpcOptions(limits)());
    if (approval === undefined) throw new TypeError("the hub answered without an approval");
    return approval;
  }

  /**
   * Every pending approval, then each change as it happens, until the caller leaves; `tool` is a name or a glob. With the
   * last `resumeToken` that was not empty, as it does itself across broken connections, it begins with what has changed
   * since, decided or not; the latest may come twice.
   */
  watchApprovals(where: { tool?: string } = {}, options: ResumeOptions = {}): AsyncGenerator<WatchApprovalsResponse> {
    const open = (resumeToken: string, call: CallOptions) =>
      this.approvals.watchApprovals({ ...where, resumeToken }, call);
    return resumed("approvals", open, options);
  }

  /**
   * Approve the call with exactly the arguments that `approval` shows; `answer` is for a question. A text in the place of
   * the options is the comment.
   */
  approve(approval: Approval, options: string | Judgement = {}, answer?: JsonObject): Promise<Approval> {
    const given = typeof options === "string" ? { comment: options } : options;
    return this.decide(approval, Decision.APPROVE, answer === undefined ? given : { ...given, answer });
  }

  /** Reject a pending approval, with the options of `approve`. */
  reject(approval: Approval, options: string | Omit<Judgement, "answer"> = {}): Promise<Approval> {
    return this.decide(approval, Decision.REJECT, typeof options === "string" ? { comment: options } : options);
  }

  private async decide(of: Approval, decision: Decision, options: Judgement): Promise<Approval> {
    const { comment = "", answer, ...limits } = options;
    const answerJson = answer === undefined ? new Uint8Array() : new TextEncoder().encode(JSON.stringify(answer));
    const { approvalId, argsDigest } = of;
    const request = { approvalId, argsDigest, decision, comment, answerJson };
    const { approval } = await this.approvals.decideApproval(request, rpcOptions(limits)());
    if (approval === undefined) throw new TypeError("the hub answered without an approval");
    return approval;
  }

  private keyOf(call: Call): string {
    return call.idempotencyKey || (this.automaticKeys ? randomUUID() : "");
  }

  private request(call: Call) {
    return {
      intent: intentOf(call, this.keyOf(call)),
      context: { ...(call.context ?? this.context), requestId: call.context?.requestId || this.context.requestId || "" },
      planDigest: call.planDigest ?? "",
      approvalId: call.approvalId ?? "",
    };
  }
}

/** The items of page after page. */
async function* pages<Item>(
  limits: CallLimits,
  page: (token: string, options: CallOptions) => Promise<[Item[], string]>,
): AsyncGenerator<Item> {
  const options = rpcOptions(limits);
  let token = "";
  do {
    const [items, next] = await page(token, options());
    yield* items;
    token = next;
  } while (token !== "");
}
