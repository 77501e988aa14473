"""Every name in the hub's telemetry: metrics, spans, span attributes, log events."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from toolhub_service.domain.result import StepName


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def without(self, label: str) -> Metric:
        return msgspec.structs.replace(self, labels=tuple(each for each in self.labels if each != label))


METRICS: Final[list[Metric]] = []
"""All metrics, in the order of docs/metrics.md."""


def _metric(
    name: str,
    kind: MetricKind,
    unit: str,
    help: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Metric:
    METRICS.append(Metric(name, kind, unit, help, labels, buckets))
    return METRICS[-1]


_CALL_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_STEP_S: Final = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.001, 0.01, 0.1, 1.0, 10.0)
_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PERSON_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)
_RPC: Final = ("grpc_type", "grpc_service", "grpc_method")
_WHO: Final = ("mode", "issuer", "outcome")
_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

PRINCIPAL: Final = "principal"
"""A label that only `metrics.max_principals` enables: there may be many callers."""

TOOL_INVOCATIONS: Final = _metric(
    "toolhub_tool_invocations_total",
    _C,
    "calls",
    "Calls that ended, refused ones too.",
    ("tool", "ok", PRINCIPAL),
)
TOOL_LATENCY: Final = _metric(
    "toolhub_tool_latency_seconds",
    _H,
    "s",
    "From the call's arrival to its result.",
    ("tool",),
    _CALL_S,
)
_SPENT: Final = "Time spent in each of the nine steps."
TOOL_STEP: Final = _metric("toolhub_tool_step_duration_seconds", _H, "s", _SPENT, ("step",), _STEP_S)
_AGAIN: Final = "Attempts after the first one of a call."
TOOL_RETRIES: Final = _metric("toolhub_tool_retries_total", _C, "attempts", _AGAIN, ("tool",))
_REPLAYED: Final = "Calls answered with the stored result of their idempotency key."
TOOL_REPLAYS: Final = _metric("toolhub_tool_replays_total", _C, "calls", _REPLAYED, ("tool",))
_FAILED: Final = "Calls that failed, by error kind."
TOOL_ERRORS: Final = _metric("toolhub_tool_errors_total", _C, "calls", _FAILED, ("kind",))
_MET: Final = "Defects that calls met, whatever their callers were told; each is in the log."
TOOL_DEFECTS: Final = _metric("toolhub_tool_defects_total", _C, "defects", _MET)
POLICY_DENIED: Final = _metric(
    "toolhub_policy_denied_total",
    _C,
    "calls",
    "Calls that policy refused or sent to approval, by rule or kind.",
    ("tool", "reason"),
)
IN_FLIGHT: Final = _metric("toolhub_executions_in_flight", _G, "executions", "Executions running in adapters now.")
OLDEST_CALL: Final = _metric("toolhub_oldest_call_seconds", _G, "s", "Age of the oldest call in flight; 0: none is.")
TURN_WAIT: Final = _metric("toolhub_turn_wait_seconds", _H, "s", "Wait of calls for a turn on the loop.", buckets=_S)
RPC_STARTED: Final = _metric("grpc_server_started_total", _C, "RPCs", "RPCs started on the server.", _RPC)
RPC_HANDLED: Final = _metric(
    "grpc_server_handled_total", _C, "RPCs", "RPCs completed on the server, by status.", (*_RPC, "grpc_code")
)
RPC_SECONDS: Final = _metric("grpc_server_handling_seconds", _H, "s", "Time from start to end of an RPC.", _RPC, _S)
RPC_RECEIVED: Final = _metric("grpc_server_msg_received_total", _C, "messages", "Messages received from clients.", _RPC)
RPC_SENT: Final = _metric("grpc_server_msg_sent_total", _C, "messages", "Messages sent to clients.", _RPC)
_MCP: Final = ("mcp_method_name", "mcp_protocol_version", "error_type")
MCP_SECONDS: Final = _metric("mcp_server_operation_duration_seconds", _H, "s", "Time of an MCP request.", _MCP, _CALL_S)
MCP_SESSIONS: Final = _metric("toolhub_mcp_sessions_open", _G, "sessions", "Sessions of MCP of 2025-11-25 and older.")
MCP_STREAMS: Final = _metric("toolhub_mcp_streams_open", _G, "streams", "Streams of MCP that only wait for changes.")
CERTIFICATE_END: Final = _metric("toolhub_certificate_end_timestamp_seconds", _G, "s", "When it expires.", ("file",))
CERTIFICATE_RELOADS: Final = _metric(
    "toolhub_certificate_reloads_total", _C, "reloads", "Changed files of TLS that were read.", ("file", "ok")
)
CLOCK_BEHIND: Final = _metric(
    "toolhub_clock_behind_seconds", _G, "s", "How far the clock is behind the newest audit event; 0: it is not."
)
WORKLOAD_API: Final = _metric("toolhub_workload_api_connected", _G, "streams", "0: the SPIFFE agent is away.", ("id",))
AUDIT_EVENTS: Final = _metric("toolhub_audit_events_total", _C, "events", "Audit events that reached the disk.")
AUDIT_FAILURES: Final = _metric("toolhub_audit_failures_total", _C, "commits", "Audit commits that the disk refused.")
AUDIT_DEPTH: Final = _metric("toolhub_audit_queue_depth", _G, "events", "Audit events not on disk, after a commit.")
AUDIT_COMMIT: Final = _metric(
    "toolhub_audit_commit_seconds", _H, "s", "Time of one group commit, fsync included.", (), _S
)
AUDIT_EXPORTED: Final = _metric(
    "toolhub_audit_exported_total", _C, "events", "Audit events that a place has taken.", ("sink",)
)
AUDIT_EXPORT_REFUSED: Final = _metric(
    "toolhub_audit_export_refused_total", _C, "events", "Audit events that a place has refused for good.", ("sink",)
)
AUDIT_BACKLOG: Final = _metric(
    "toolhub_audit_export_backlog", _G, "events", "Audit events that a place has not yet, at most.", ("sink",)
)
UPKEEP_FAILURES: Final = _metric(
    "toolhub_audit_upkeep_failures_total",
    _C,
    "failures",
    "Tries to carry audit events to a place, or to remove old ones, that failed and are made again.",
    ("task",),
)
REMOVED: Final = _metric(
    "toolhub_retention_removed_total", _C, "items", "What was removed because its time was over.", ("what",)
)
STORAGE_USED: Final = _metric(
    "toolhub_storage_used_bytes",
    _G,
    "bytes",
    "What all callers store: `workspaces`, `artifacts` or `memory`; refreshed once a minute.",
    ("kind",),
)
STORAGE_NEAR: Final = _metric(
    "toolhub_storage_principals",
    _G,
    "principals",
    "Principals whose workspaces have reached their `soft` or their `hard` bound.",
    ("bound",),
)
STORAGE_REFUSED: Final = _metric(
    "toolhub_storage_refused_total",
    _C,
    "calls",
    "Calls that were refused because nothing more could be stored, by the limit that refused.",
    ("limit",),
)
DISK_FREE: Final = _metric(
    "toolhub_disk_free_bytes",
    _G,
    "bytes",
    "Free space of the disk of a folder: `data`, `workspaces` or `artifacts`.",
    ("folder",),
)
DISK_RESERVE: Final = _metric(
    "toolhub_disk_reserve_bytes", _G, "bytes", "Free space below which callers store nothing there.", ("folder",)
)
_JOB_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 21_600.0, 86_400.0)
JOBS_ACCEPTED: Final = _metric("toolhub_jobs_accepted_total", _C, "jobs", "Jobs put into the store here.", ("tool",))
JOBS_ENDED: Final = _metric(
    "toolhub_jobs_ended_total", _C, "jobs", "Jobs that this process brought to a final state.", ("tool", "state")
)
JOBS_LOST: Final = _metric(
    "toolhub_jobs_lost_total", _C, "jobs", "Jobs that this process brought to LOST, by cause.", ("tool", "cause")
)
JOBS_OPEN: Final = _metric(
    "toolhub_jobs_open", _G, "jobs", "Jobs in the whole store that are not final, by state.", ("state",)
)
JOBS_OLDEST_QUEUED: Final = _metric("toolhub_jobs_oldest_queued_seconds", _G, "s", "Age of the oldest QUEUED; 0: none.")
JOBS_RUNNING: Final = _metric("toolhub_jobs_running", _G, "jobs", "Jobs that this process runs now.")
JOB_STATE_SECONDS: Final = _metric(
    "toolhub_job_state_seconds", _H, "s", "Time a job spent in a state before it left it.", ("state",), _JOB_S
)
JOB_REDELIVERIES: Final = _metric(
    "toolhub_job_redeliveries_total", _C, "jobs", "Jobs taken over from a process that died."
)
JOB_WATCHERS: Final = _metric("toolhub_job_watchers", _G, "watchers", "Streams of WatchJob open now.")
JOB_TROUBLES: Final = _metric(
    "toolhub_job_troubles_total", _C, "problems", "Changes of jobs that failed and are tried again, and defects."
)
APPROVALS: Final = _metric(
    "toolhub_approvals_total", _C, "approvals", "Changes of approvals by this process, by the new state.", ("state",)
)
APPROVALS_PENDING: Final = _metric("toolhub_approvals_pending", _G, "approvals", "Approvals that wait for a person.")
APPROVAL_SECONDS: Final = _metric(
    "toolhub_approval_decision_seconds", _H, "s", "From the question to a person's answer.", (), _PERSON_S
)
SOURCE_UP: Final = _metric(
    "toolhub_source_up",
    _G,
    "1",
    "1 while the last reading of a source succeeded, 0 while it is down; of several workers the least.",
    ("source",),
)
SOURCE_WHOLE: Final = _metric(
    "toolhub_source_whole",
    _G,
    "1",
    "1 while the last reading of a source left nothing out, 0 while partial or down; of several workers the least.",
    ("source",),
)
SOURCE_TOOLS: Final = _metric("toolhub_source_tools", _G, "tools", "Tools known from a source.", ("source",))
SOURCE_QUARANTINED: Final = _metric(
    "toolhub_source_quarantined",
    _G,
    "tools",
    "Tools of a source that wait for a decision, or whose definitions cannot be used.",
    ("source",),
)
SOURCE_SECONDS: Final = _metric(
    "toolhub_source_refresh_seconds", _H, "s", "Time of one successful reading of a source.", ("source",), _S
)
SOURCE_TROUBLES: Final = _metric(
    "toolhub_source_troubles_total", _C, "problems", "Failures around a source that are tried again.", ("source",)
)
PINS: Final = _metric("toolhub_pins_total", _C, "pins", "Definitions pinned, drifted and decided.", ("source", "event"))
AUTHENTICATIONS: Final = _metric("toolhub_authentications_total", _C, "RPCs", "By credential.", _WHO)
ACCESS_REFUSED: Final = _metric(
    "toolhub_access_refused_total", _C, "RPCs", "RPCs refused for their credential or role, by reason.", ("reason",)
)
BREAKER: Final = _metric(
    "toolhub_breaker_state",
    _G,
    "state",
    "Circuit breaker of an upstream: 0 closed, 1 half-open (the next call tries), 2 open (calls are refused).",
    ("upstream",),
)
POLICY_INFO: Final = _metric("toolhub_policy_info", _G, "1", "1 for the policy revision in force.", ("revision",))
POLICY_RELOADS: Final = _metric("toolhub_policy_reloads_total", _C, "reloads", "Policy reloads, by success.", ("ok",))
BUILD_INFO: Final = _metric("toolhub_build_info", _G, "1", "1, with the version that runs.", ("version",))

UNKNOWN_TOOL: Final = "unknown"
"""Label of a tool that the catalog does not have, so that a caller cannot create labels."""
OTHER: Final = "other"
"""Label of everything beyond the bound on distinct values."""

SPAN_RPC: Final = "{service}/{method}"
SPAN_STEP: Final = "toolhub.step.{step}"
SPAN_EXECUTE_TOOL: Final = "execute_tool {tool}"
SPAN_JOB: Final = "job {tool}"
SPAN_MCP: Final = "{method} {tool or prompt}"
STEP_SPANS: Final = {step: SPAN_STEP.format(step=step.value) for step in StepName}

ATTRIBUTE_RPC_SYSTEM: Final = "rpc.system.name"
ATTRIBUTE_RPC_METHOD: Final = "rpc.method"
ATTRIBUTE_RPC_STATUS: Final = "rpc.response.status_code"
ATTRIBUTE_MCP_METHOD: Final = "mcp.method.name"
ATTRIBUTE_MCP_VERSION: Final = "mcp.protocol.version"
ATTRIBUTE_MCP_SESSION: Final = "mcp.session.id"
ATTRIBUTE_MCP_RESOURCE: Final = "mcp.resource.uri"
ATTRIBUTE_PROMPT: Final = "gen_ai.prompt.name"
ATTRIBUTE_REQUEST: Final = "jsonrpc.request.id"
ATTRIBUTE_ERROR: Final = "error.type"
ATTRIBUTE_PRINCIPAL: Final = "toolhub.principal"
ATTRIBUTE_OUTCOME: Final = "toolhub.outcome"
ATTRIBUTE_OPERATION: Final = "gen_ai.operation.name"
ATTRIBUTE_TOOL: Final = "gen_ai.tool.name"
ATTRIBUTE_CALL: Final = "gen_ai.tool.call.id"
ATTRIBUTE_TOOL_TYPE: Final = "gen_ai.tool.type"
ATTRIBUTE_TOOL_KIND: Final = "toolhub.tool.kind"
ATTRIBUTE_ATTEMPT: Final = "toolhub.attempt"
ATTRIBUTE_JOB: Final = "toolhub.job.id"
ATTRIBUTE_RUNS: Final = "toolhub.job.runs"
ATTRIBUTE_RULE: Final = "toolhub.policy.rule_id"

SPANS: Final = (
    (
        "RPC",
        SPAN_RPC,
        "One RPC; RPC semantic conventions, `toolhub.principal`; of a call `gen_ai.tool.name` and `toolhub.outcome`.",
    ),
    ("MCP request", SPAN_MCP, "One MCP request; the GenAI semantic conventions' part on MCP, `toolhub.principal`."),
    ("step", SPAN_STEP, "One of the nine steps of a call. Parent: the RPC."),
    ("job", SPAN_JOB, "One run of a job; a trace of its own, linked to the span that submitted it."),
    (
        "execution",
        SPAN_EXECUTE_TOOL,
        "One attempt in the adapter; GenAI semantic conventions. Parent: the execute step.",
    ),
)


LOG_EVENTS: Final[list[tuple[str, str, str]]] = []
"""Name, level and meaning of each, in the order of docs/metrics.md."""


def _event(name: str, level: str, meaning: str) -> str:
    LOG_EVENTS.append((name, level, meaning))
    return name


LOG_CALL: Final = _event("call_settled", "info", "A call ended; only when the access log is on.")
LOG_UNKEPT: Final = _event(
    "answer_not_kept",
    "warning",
    "The answer under an idempotency key could not be stored; its outcome will be unknown.",
)
LOG_RETRY: Final = _event("call_retried", "info", "An attempt failed and another one follows.")
LOG_CRASH: Final = _event(
    "call_crashed",
    "error",
    "A defect: the caller was told INTERNAL, or OUTCOME_UNKNOWN, and the call id; the traceback is here, redacted.",
)
LOG_UNRECORDED: Final = _event(
    "call_not_recorded",
    "error",
    "The audit log, broken or full, did not take an event of the call: this line is all of it.",
)
LOG_JOB_TAKEN: Final = _event("job_taken_over", "warning", "A job whose process died is run by this one now.")
LOG_JOB_ENDED: Final = _event(
    "job_ended_badly", "warning", "A job is LOST or TIMED_OUT: its outcome is unknown, or it took too long."
)
LOG_JOB_TROUBLE: Final = _event(
    "job_trouble", "warning", "A change of a job failed and will be tried again; a defect carries its traceback."
)
LOG_WEBHOOK_GIVEN_UP: Final = _event(
    "approval_webhook_given_up",
    "error",
    "The webhook could not be notified of a question; `toolhub approvals list` has it.",
)
LOG_SOURCE_READ: Final = _event(
    "source_read", "info", "A source can be read again, or for the first time, or what it offers is another."
)
LOG_SOURCE_PARTIAL: Final = _event(
    "source_partial", "warning", "A source was read, and something of it cannot be used; `reason` says what."
)
LOG_SOURCE_DOWN: Final = _event(
    "source_down", "warning", "A source cannot be read; its tools are UNAVAILABLE and it is tried again."
)
LOG_SOURCE_TROUBLE: Final = _event(
    "source_trouble", "warning", "Something around a source failed and will be tried again."
)
LOG_SOURCES_LOADED: Final = _event("sources_loaded", "info", "sources.yaml came into force.")
LOG_SOURCES_REJECTED: Final = _event(
    "sources_rejected", "error", "sources.yaml is invalid: the sources there were stay."
)
LOG_DRIFT: Final = _event(
    "definition_drifted", "warning", "A source offers another definition than was approved; the tool is quarantined."
)
LOG_UNCONFINED: Final = _event(
    "commands_unconfined",
    "warning",
    "Commands are allowed, and neither bubblewrap nor Landlock works here: they see the hub's disk and network.",
)
LOG_SCRIPTS_LACKING: Final = _event(
    "scripts_cannot_start",
    "warning",
    "There are sources of skills, and no script of theirs can start here; `reason` says why and what to do.",
)
LOG_SEARCH_TROUBLE: Final = _event(
    "search_trouble", "warning", "What search learns cannot be stored, or the embedder fails; it is tried again."
)
LOG_AUDIT_FAILED: Final = _event(
    "audit_write_failed", "error", "The disk refused audit events; calls are refused until it heals."
)
LOG_UPKEEP_FAILED: Final = _event(
    "audit_upkeep_failed",
    "warning",
    "A place that the audit log is carried to is away, or old events could not be removed; it is tried again.",
)
LOG_EXPORT_REFUSED: Final = _event(
    "audit_export_refused", "error", "A place has refused audit events for good; they are in the log itself."
)
LOG_EXPORT_ANEW: Final = _event(
    "audit_export_anew",
    "warning",
    "The audit log is another one than was carried, such as a restored one: all is sent.",
)
LOG_DISK_SHORT: Final = _event(
    "disk_reserve_reached",
    "error",
    "Less than the reserve of a disk is free: callers store nothing there; reads and the audit log go on.",
)
LOG_DISK_ROOM: Final = _event("disk_reserve_free", "info", "A disk has space again: callers may store there.")
LOG_STORAGE_NEAR: Final = _event(
    "storage_bound_near", "warning", "The workspaces of a principal have reached their soft or hard bound of bytes."
)
LOG_STORAGE_TROUBLE: Final = _event(
    "storage_not_measured", "warning", "What callers store could not be measured; it is tried again."
)
LOG_SWEPT: Final = _event("retention_removed", "info", "What was removed because its time was over.")
LOG_CHECKPOINT: Final = _event(
    "audit_checkpoint", "info", "A signed checkpoint line of the audit log: keep it elsewhere, as a witness."
)
LOG_POLICY_LOADED: Final = _event("policy_loaded", "info", "A policy came into force.")
LOG_POLICY_REJECTED: Final = _event(
    "policy_rejected", "error", "The policy file is invalid or gone: the old policy stays."
)
LOG_POLICY_UNMATCHED: Final = _event(
    "policy_names_unknown", "warning", "The policy names unknown tools, capabilities or principals: a typo?"
)
LOG_MCP_NAMES_CLASH: Final = _event(
    "mcp_names_clash", "warning", "Tools of server.mcp.unprefixed_sources keep their prefix: others have that name too."
)
LOG_SHADOW_LOADED: Final = _event("shadow_loaded", "info", "A candidate policy watches beside the live one.")
LOG_SHADOW_REJECTED: Final = _event("shadow_rejected", "error", "The candidate policy is invalid.")
LOG_SHADOW_DIFFERS: Final = _event("shadow_differs", "info", "The candidate would have decided a call otherwise.")
LOG_SHADOW_FAILED: Final = _event(
    "shadow_failed", "error", "The candidate policy failed on calls; the live one decided."
)
LOG_KEYS_UNREADABLE: Final = _event(
    "keys_unreadable", "error", "The file of API keys cannot be read: the keys there were stay."
)
LOG_TLS_LOADED: Final = _event("certificate_loaded", "info", "A new certificate or CA bundle is in force.")
LOG_TLS_REJECTED: Final = _event("certificate_rejected", "error", "A new one cannot be used: the old one stays.")
LOG_TLS_EXPIRES: Final = _event(
    "certificate_expires", "warning", "A certificate in force expires in 14, 3 or 1 days, or (error) has expired."
)
LOG_CLOCK_BEHIND: Final = _event(
    "clock_behind", "error", "The clock is behind the newest audit event: set it (NTP), or find who set it ahead."
)
LOG_SVID_AWAY: Final = _event("workload_api_away", "warning", "The SPIFFE agent is away: the last SVID serves.")
LOG_SVID_BACK: Final = _event("workload_api_connected", "info", "The SPIFFE agent keeps SVID and bundles fresh.")
LOG_SVID_ENDED: Final = _event("svid_expired", "error", "The hub's SVID has expired, and the SPIFFE agent is away.")
LOG_KEY_EXPIRES: Final = _event(
    "key_expires", "warning", "An API key expires soon; `advice` is the command that makes the next one."
)
LOG_KEY_USES_LOST: Final = _event(
    "key_uses_lost", "warning", "When API keys were used last cannot be written; nothing else depends on it."
)
LOG_FILES_LOOSE: Final = _event(
    "files_loose", "warning", "Others may write what the hub trusts; `repair` is the command that ends it."
)
LOG_PLAN_KEY_DIFFERS: Final = _event(
    "plan_key_differs", "warning", "The shared store has another plan.key than the data folder: the store's is used."
)
LOG_ACCESS_REFUSED: Final = _event(
    "access_refused",
    "warning",
    "RPCs of a peer are refused for their credential or role; the first of a minute, AUTH_FAILED has the count.",
)
LOG_ACCESS_UNRECORDED: Final = _event(
    "access_not_recorded",
    "error",
    "The audit log took no event of refused RPCs or of who read it; it is tried again each minute until the end.",
)
