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
import type { ToolResult } from "../../../gen/ts/toolhub/v1/result_pb.js";
import type { ToolFilterSchema, ToolSpec } from "../../../gen/ts/toolhub/v1/tool_pb.js";
import {
  ExportFormat,
  type GetServerInfoResponse,
  type SearchHit,
  ToolService,
  type ToolServiceWatchToolsResponse,
} from "../../../gen/ts/toolhub/v1/tool_service_pb.js";
import { readArtifact } from "./artifacts.js";
import { type Call, type Context, intentOf, type JsonObject } from "./call.js";
import { type Config, target, transportTo } from "./connection.js";
import { CallFailed } from "./failures.js";
import { isFinal, watchJob, type WatchJobOptions, watchJobs, type WatchJobsFilter } from "./jobs.js";
import { Session } from "./session.js";
import { type ModelToolCall, NO_OBJECT, readToolCall, textOf, type ToolMessage } from "./tool_calls.js";
import { type Content, putArtifact } from "./uploads.js";
import { type ResumeOptions, resumed, until, type WatchOptions } from "./watches.js";

/** The fields of a request for a list, without its page. */
type Filter<
  Schema extends typeof ListJobsRequestSchema | typeof ListApprovalsRequestSchema | typeof ListArtifactsRequestSchema,
> = Omit<Exclude<MessageInitShape<Schema>, { $typeName: string }>, "pageToken">;

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

/** A connected hub. The generated clients stand beside, with the credential and retries of the others. */
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

  /** Make one call. A refused or failed call is a result with `ok = false`; `valueOf` makes it an exception. */
  async invoke(call: Call): Promise<ToolResult> {
    const response = await this.tools.invoke(this.request(call), options(call));
    if (response.outcome.case !== "result") throw new TypeError("the hub answered an execution without a result");
    return response.outcome.value;
  }

  /** What `invoke` would do. Nothing happens. */
  async dryRun(call: Call): Promise<DryRun> {
    const keyed = { ...call, idempotencyKey: this.keyOf(call) };
    const response = await this.tools.invoke({ ...this.request(keyed), mode: InvokeMode.DRY_RUN }, options(call));
    if (response.outcome.case !== "plan") throw new TypeError("the hub answered a dry run without a plan");
    const plan = response.outcome.value;
    const stopped = plan.planDigest === "" ? plan.steps.find((step) => !step.ok)?.error : undefined;
    return { plan, error: stopped && new CallFailed(stopped, plan.callId), call: keyed };
  }

  /** Do exactly what the dry run has shown; anything else is PLAN_REQUIRED. */
  commit(shown: DryRun): Promise<ToolResult> {
    return this.invoke({ ...shown.call, planDigest: shown.plan.planDigest });
  }

  /** Make one call and see it happen; the result comes last. Leaving the loop early cancels the call. */
  async *invokeStream(call: Call): AsyncGenerator<Progress | Chunk | ToolResult> {
    const request = this.request(call);
    for await (const { event } of until((signal) => this.tools.invokeStream(request, { signal }), call.signal)) {
      if (event.case !== undefined && event.case !== "plan") yield event.value;
    }
  }

  /** Have a call made as a job, which goes on without its caller. A refused call is a job that has failed. */
  async submitJob(call: Call): Promise<Job> {
    const { job } = await this.jobs.submitJob(this.request(call), options(call));
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
  async getJob(jobId: string): Promise<Job> {
    const { job } = await this.jobs.getJob({ jobId });
    if (job === undefined) throw new TypeError("the hub answered without a job");
    return job;
  }

  /** The caller's jobs, newest first, page by page. */
  listJobs(where: Filter<typeof ListJobsRequestSchema> = {}): AsyncGenerator<Job> {
    return pages(async (pageToken) => {
      const page = await this.jobs.listJobs({ ...where, pageToken });
      return [page.jobs, page.nextPageToken];
    });
  }

  /** Waits for a job's end. A failed job is a result with `ok = false`; `valueOf` makes it an exception. */
  async jobResult(jobId: string): Promise<ToolResult> {
    for await (const status of this.watchJob(jobId)) {
      if (isFinal(status.state) && status.result !== undefined) return status.result;
    }
    throw new TypeError("a watched job ended without a result");
  }

  /** Ask a job to stop; the status says whether it already has. */
  async cancelJob(jobId: string, reason = ""): Promise<JobStatus> {
    const { status } = await this.jobs.cancelJob({ jobId, reason });
    if (status === undefined) throw new TypeError("the hub answered without a status");
    return status;
  }

  /** Many calls over one stream. */
  session(): { invoke: (call: Call) => Promise<ToolResult>; close: () => Promise<void> } {
    const session = new Session(this.tools);
    return {
      invoke: (call) => session.invoke(this.request(call), call.signal),
      close: () => session.close(),
    };
  }

  /** Every tool the caller could be allowed, page by page. */
  listTools(where: MessageInitShape<typeof ToolFilterSchema> = {}): AsyncGenerator<ToolSpec> {
    return pages(async (pageToken) => {
      const page = await this.tools.listTools({ filter: where, pageToken });
      return [page.tools, page.nextPageToken];
    });
  }

  /**
   * Each change of what `listTools` gives, until the caller leaves. A message that says `reset` wants the tools listed
   * anew: the first one does, unless it goes on with a `resumeToken`, as it does itself across broken connections.
   */
  watchTools(
    where: MessageInitShape<typeof ToolFilterSchema> = {},
    options: ResumeOptions = {},
  ): AsyncGenerator<ToolServiceWatchToolsResponse> {
    return resumed("tools", (resumeToken, call) => this.tools.watchTools({ filter: where, resumeToken }, call), options);
  }

  /** The best hits, at most `limit`; 0 means 100. */
  async search(query: string, limit = 10, where: MessageInitShape<typeof ToolFilterSchema> = {}): Promise<SearchHit[]> {
    const found: SearchHit[] = [];
    const hits = pages(async (pageToken) => {
      const page = await this.tools.searchTools({ query, pageSize: limit, filter: where, pageToken });
      return [page.hits, page.nextPageToken];
    });
    for await (const hit of hits) {
      found.push(hit);
      if (found.length >= (limit || 100)) break;
    }
    return found;
  }

  /** What the hub is, what it takes and what it offers. */
  serverInfo(): Promise<GetServerInfoResponse> {
    return this.tools.getServerInfo({});
  }

  /** One tool. */
  async getTool(name: string): Promise<ToolSpec> {
    const { tool } = await this.tools.getTool({ name });
    if (tool === undefined) throw new TypeError("the hub answered without a tool");
    return tool;
  }

  /** Definitions for a model, and each exported name's tool. */
  async export(
    form: keyof typeof FORMATS,
    where: MessageInitShape<typeof ToolFilterSchema> = {},
  ): Promise<{ tools: JsonObject[]; names: { [exported: string]: string } }> {
    const names: { [exported: string]: string } = {};
    const definitions = pages<JsonObject>(async (pageToken) => {
      const page = await this.tools.exportTools({ format: FORMATS[form], filter: where, pageToken });
      Object.assign(names, page.names);
      return [JSON.parse(new TextDecoder().decode(page.toolsJson)), page.nextPageToken];
    });
    const tools: JsonObject[] = [];
    for await (const tool of definitions) tools.push(tool);
    for (const [exported, tool] of Object.entries(names)) this.exported.set(exported, { tool, form });
    return { tools, names };
  }

  /** Tools as functions of programs, in the text of that language. */
  async stubs(language: keyof typeof STUBS, where: MessageInitShape<typeof ToolFilterSchema> = {}): Promise<string> {
    let text = "";
    for (let pageToken = "", isFirst = true; isFirst || pageToken !== ""; isFirst = false) {
      const page = await this.tools.exportTools({ format: STUBS[language], filter: where, pageToken });
      text += page.text;
      pageToken = page.nextPageToken;
    }
    return text;
  }

  /**
   * Make a model's tool call, and give the message that answers it in the form of its API. The names are those of tools
   * that this object has exported, whose form the arguments are read in, or full ones. A refusal is a message, too: it
   * tells the model what to do.
   */
  async runToolCall(call: ModelToolCall, more: Omit<Call, "tool" | "args"> = {}): Promise<ToolMessage> {
    const asked = readToolCall(call);
    if (asked.args === undefined) return asked.answer(NO_OBJECT, true);
    const { tool, form } = this.exported.get(asked.name) ?? { tool: asked.name, form: "openai" as const };
    const result = await this.invoke({ argsForm: form, ...more, tool, args: asked.args });
    return asked.answer(textOf(result), !result.ok);
  }

  /**
   * Store bytes, a Blob or a stream of chunks; arguments name it as `{"$artifact": artifactId}`. Bytes and Blobs, such as
   * `await openAsBlob(path)` of node:fs, go on where a broken connection left them. When it throws, nothing is kept.
   */
  putArtifact(content: Content, header: MessageInitShape<typeof ArtifactHeaderSchema> = {}): Promise<Artifact> {
    const taskId = header.taskId || (this.context.taskId ?? "");
    return putArtifact(this.artifacts, content, { ...header, taskId });
  }

  /** An artifact's bytes across broken connections. Throws DigestMismatch before the last chunk. */
  readArtifact(artifactId: string): AsyncGenerator<Uint8Array> {
    return readArtifact(this.artifacts, artifactId);
  }

  /** Its bytes at once; for large ones `readArtifact`. */
  async getArtifact(artifactId: string): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for await (const chunk of this.readArtifact(artifactId)) chunks.push(chunk);
    return Buffer.concat(chunks);
  }

  /** Page by page, those that expire last first. */
  listArtifacts(where: Filter<typeof ListArtifactsRequestSchema> = {}): AsyncGenerator<Artifact> {
    return pages(async (pageToken) => {
      const page = await this.artifacts.listArtifacts({ ...where, pageToken });
      return [page.artifacts, page.nextPageToken];
    });
  }

  /** Remove one of the caller's own before it expires. */
  async deleteArtifact(artifactId: string): Promise<void> {
    await this.artifacts.deleteArtifact({ artifactId });
  }

  /** Newest first, page by page: everybody's for approvers, the caller's own for others. */
  listApprovals(where: Filter<typeof ListApprovalsRequestSchema> = {}): AsyncGenerator<Approval> {
    return pages(async (pageToken) => {
      const page = await this.approvals.listApprovals({ ...where, pageToken });
      return [page.approvals, page.nextPageToken];
    });
  }

  /** One approval. */
  async getApproval(approvalId: string): Promise<Approval> {
    const { approval } = await this.approvals.getApproval({ approvalId });
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

  /** Say yes to exactly the arguments that `approval` shows; `answer` is for one with a question. */
  approve(approval: Approval, comment = "", answer?: JsonObject): Promise<Approval> {
    return this.decide(approval, Decision.APPROVE, comment, answer);
  }

  /** Say no. */
  reject(approval: Approval, comment = ""): Promise<Approval> {
    return this.decide(approval, Decision.REJECT, comment);
  }

  private async decide(of: Approval, decision: Decision, comment: string, answer?: JsonObject): Promise<Approval> {
    const answerJson = answer === undefined ? new Uint8Array() : new TextEncoder().encode(JSON.stringify(answer));
    const { approvalId, argsDigest } = of;
    const { approval } = await this.approvals.decideApproval({ approvalId, argsDigest, decision, comment, answerJson });
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
async function* pages<Item>(page: (token: string) => Promise<[Item[], string]>): AsyncGenerator<Item> {
  let token = "";
  do {
    const [items, next] = await page(token);
    yield* items;
    token = next;
  } while (token !== "");
}

function options(call: Call): { signal?: AbortSignal } {
  return call.signal ? { signal: call.signal } : {};
}
