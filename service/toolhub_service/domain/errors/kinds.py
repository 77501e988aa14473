"""The table of tool errors: what each kind means, what a model should do, whether waiting can help, its gRPC code.

docs/errors.md, the clients' tables and the status of an RPC error of the same meaning are made from it, in its order.
tests/unit/source/test_error_table.py checks the details of every call site against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from toolhub_service.domain.errors.spec import Code, KindSpec


class ErrorKind(Enum):
    """Every way a call can fail. The value is the wire name."""

    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_QUARANTINED = "TOOL_QUARANTINED"
    TOOL_UNAVAILABLE = "TOOL_UNAVAILABLE"
    INPUT_SCHEMA_INVALID = "INPUT_SCHEMA_INVALID"
    INVALID_INPUT = "INVALID_INPUT"
    POLICY_DENIED = "POLICY_DENIED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    APPROVAL_REJECTED = "APPROVAL_REJECTED"
    PLAN_REQUIRED = "PLAN_REQUIRED"
    PATH_OUTSIDE_SANDBOX = "PATH_OUTSIDE_SANDBOX"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FILE_TOO_LARGE = "FILE_TOO_LARGE"
    HTTP_DISALLOWED_HOST = "HTTP_DISALLOWED_HOST"
    HTTP_TIMEOUT = "HTTP_TIMEOUT"
    HTTP_TOO_LARGE = "HTTP_TOO_LARGE"
    NETWORK_ERROR = "NETWORK_ERROR"
    IO_ERROR = "IO_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"
    RATE_LIMITED = "RATE_LIMITED"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    UPSTREAM_ERROR = "UPSTREAM_ERROR"
    OUTPUT_SCHEMA_INVALID = "OUTPUT_SCHEMA_INVALID"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    INTERNAL = "INTERNAL"
    TOOL_CHANGED = "TOOL_CHANGED"

    @property
    def retryable(self) -> bool:
        """Of an error that does not say: whether the same call may succeed later and is safe to send again."""
        return ERROR_KINDS[self].retryable


_PATH: Final = {"path, errno": "the path as sent, and what the system answered"}
_KEY: Final = {"idempotency_key_sent": "true: the key went with it to a host that honours keys (`retry_with_key`)"}
_SENT: Final = {"nothing_happened": "true: a request that may have an effect was not sent"}

ERROR_KINDS: Final[Mapping[ErrorKind, KindSpec]] = {
    ErrorKind.TOOL_NOT_FOUND: KindSpec(
        Code.NOT_FOUND,
        "No tool has that name.",
        "Use a name from `did_you_mean`, or search by what the tool should do. Do not guess names.",
        details={"did_you_mean": "similar names of tools that the caller may call"},
    ),
    ErrorKind.TOOL_QUARANTINED: KindSpec(
        Code.FAILED_PRECONDITION,
        "The tool's definition was never approved, differs from the approved one, was rejected, or is invalid (a "
        "broken schema).",
        "Use another tool. An operator must decide on this one.",
        details={"reason": "why, and the command with which an operator can inspect it"},
    ),
    ErrorKind.TOOL_UNAVAILABLE: KindSpec(
        Code.UNAVAILABLE,
        "The tool exists but cannot run now: its source, or a store that the call needs (jobs, idempotency keys, "
        "approvals, artifacts), cannot be reached. Nothing was done, and retry_after is set. Or a remote server "
        "did not accept the work. Not retryable where an operator must act first: a built-in or custom tool lacks "
        "a dependency on the machine or could not be loaded, the tool is disabled, or the policy requires "
        "bubblewrap for commands and it does not work here.",
        "If the error is retryable, repeat the call, after retry_after if set. Otherwise use another tool.",
        retryable=True,
        details={
            "reason": "why it is not active, or what is wrong with the store, for an operator; for n8n "
            "`WEBHOOK_UNKNOWN`, `WEBHOOK_METHOD`, `WEBHOOK_AUTH`",
            "state": "`UNAVAILABLE` or `DISABLED`",
            "store": "`redis` or `postgres`: which shared store",
            "source": "the source whose server is not connected",
            "server": "its host, port and database",
            "component": "`store`: the hub's own file",
            "cause": "`disk`, `disk_full`, `record`, `closed` or `start`: what is wrong with it; `HUB_STOPPED`: the "
            "hub shut down",
            "call_id": "of the call that the shutdown has cut off",
            "starts": "how often the work was sent to the remote server",
            "job_id": "the job that was stored and cannot be read now (not retryable)",
            "backends": "of a ComfyUI source: why each server did not accept the work",
            "setting": "the key of sources.yaml that an operator must correct for n8n (not retryable)",
            "may_be_job_id": "a job that may have been stored; check it before submitting again (not retryable "
            "without an idempotency_key)",
        },
    ),
    ErrorKind.INPUT_SCHEMA_INVALID: KindSpec(
        Code.INVALID_ARGUMENT,
        "The arguments do not match the tool's input schema. They are validated as sent, before defaults are applied.",
        "Fix every entry of `violations` (path, keyword, what was expected, a hint), then call again.",
    ),
    ErrorKind.INVALID_INPUT: KindSpec(
        Code.INVALID_ARGUMENT,
        "The arguments are not strict JSON, or match the schema and are still invalid: a malformed path, URL, "
        "command, pattern or query, an ambiguous edit, a missing purpose.",
        "Do what the message says and call again.",
        details={
            "reason, got": "what is wrong with the JSON or the query",
            "containers, members, separators": "how many arrays and objects, members and items one call may have",
            "field, argument, encoding, function": "which part is wrong",
            "call_id": "of a session: the call in flight whose call_id was used again",
            "position, character, line, lines, column, at_byte, at_index": "where it is wrong",
            "found, expected": "what was found and what was expected",
            "encodings, functions, near": "what would be accepted",
            "max_bytes, max_chars, max_depth, max_nesting, max_steps, max_artifacts": "the limit that was exceeded",
            "artifact_id, size_bytes": "the artifact that is not UTF-8 text, or the total size",
            **_PATH,
            "node_errors": "what ComfyUI rejected in the arguments, by node, class, input and type",
            "cause": "`UPLOAD_REFUSED`: ComfyUI does not accept the artifact as an input",
        },
    ),
    ErrorKind.POLICY_DENIED: KindSpec(
        Code.PERMISSION_DENIED,
        "No grant covers the caller and the tool's capabilities; a DENY rule applies, or a condition could not be "
        "evaluated; the command, its flags or its environment are not allowed, or the command is too dangerous for "
        "any policy to allow; replacing files is not allowed.",
        "Stay within what `details` allows, or stop and say so. The same call gets the same answer. `remedy` says whom "
        "to ask, and tells an operator the lines to add to policy.yaml.",
        details={
            "missing_capabilities": "what neither the grants nor the call's own permissions include",
            "principal": "the caller that was checked",
            "allowed_commands, allowed_subcommands, allowed_flags, argument_pattern, max_arguments, "
            "settable_variables": "what the policy allows",
            "condition_fault": "true: the condition of the rule could not be evaluated",
            "command, argument, connection, statement_class, tables": "what was checked",
            "danger": "the rule that always refuses the command: such as `delete-everything`, or of `denied_commands`",
        },
    ),
    ErrorKind.PERMISSION_DENIED: KindSpec(
        Code.PERMISSION_DENIED,
        "agent_id or user_id in the message differs from the authenticated caller, who may not act for others. Or the "
        "source wants a credential of the caller's own, and there is none that can be used: nothing was sent.",
        "Leave agent_id and user_id empty. Where `command` is set, ask the user to run it, then call again.",
        details={"principal": "the caller", "source, command, state": "whose credential, how it is given, its state"},
    ),
    ErrorKind.APPROVAL_REQUIRED: KindSpec(
        Code.FAILED_PRECONDITION,
        "A REQUIRE_APPROVAL rule applies, and a person has been asked: `details` names the open approval, "
        "requested by this call or an identical earlier one. Also when the approval_id that was sent is not the "
        "caller's, belongs to another call, or has been used: use the one in `details`. A job waits in "
        "AWAITING_APPROVAL and continues by itself. Also when the tool asks a person a question during the call: "
        "the approval carries the question, and the decision the answer.",
        "Tell the user that a person must decide. After the decision, invoke again with the approval_id and the "
        "same arguments. Do not try to work around it.",
        details={
            "approval_id, approval_state, expires_at": "the approval to wait for: its id, `PENDING` or `APPROVED` (it "
            "may be used now), and when it expires",
            "args_digest": "the digest of the arguments that it is for",
            "approval": "expires_s and approvers of the rule",
            "differs": "what changed since the approval was requested: `tool`, `tool definition`, `arguments`, `policy "
            "revision`, `job`, `agent`, `user`",
            "question": "the tool's question (untrusted text): `message`, and the `schema` of the answer",
            "used_approval_id": "another call has just used it, or its answer is void; there is none to wait for",
            "declined": "true: over MCP, the user does not wait for the approval",
        },
    ),
    ErrorKind.APPROVAL_REJECTED: KindSpec(
        Code.PERMISSION_DENIED,
        "A person denied the request; nobody decided in time, which counts as a denial; or the approval was not "
        "used in time.",
        "After a denial, do not request the same again. After an expiry, invoke without approval_id to request "
        "approval again.",
        details={
            "approval_id, approval_state": "which approval, and `REJECTED` or `EXPIRED`",
            "decided_by, comment": "who denied it, and that person's comment",
            "expires_at": "when it expired",
        },
    ),
    ErrorKind.PLAN_REQUIRED: KindSpec(
        Code.FAILED_PRECONDITION,
        "A destructive tool, or a REQUIRE_PLAN rule, requires a dry run first; or the plan_digest does not match "
        "the call: it expired, was not issued by this hub, or caller, tool definition, arguments or policy verdict "
        "differ from those of the plan.",
        "Read what the call would do: `details.effects`, or the plan of a DRY_RUN. If that is wanted, send the same "
        "call again with the plan: as `plan_digest`, or in the argument `details.plan_argument`.",
        details={
            "differs": "`principal`, `tool definition`, `arguments`, `policy verdict`, `workspace`, `expired`, "
            "`forged`; `call`: one of the first five; or `state`: what the call would destroy has changed since",
            "effects, plan_digest, expires_in_s": "of `state`, and of a model's call (`args_form`, MCP): what the call "
            "would do now, and the digest of that plan",
            "plan_argument": "of a model's call: the argument that takes the digest",
            "declined": "true: over MCP, the user was asked about the plan and did not agree",
        },
    ),
    ErrorKind.PATH_OUTSIDE_SANDBOX: KindSpec(
        Code.PERMISSION_DENIED,
        "A path is absolute, leaves the workspace, or goes through a symbolic link.",
        "Use a path relative to the workspace, without symbolic links.",
        details={**_PATH, "argument": "which argument"},
    ),
    ErrorKind.NOT_FOUND: KindSpec(
        Code.NOT_FOUND,
        "The file or folder does not exist, or an allowed command is not installed. A job or an artifact does not "
        "exist, expired, or belongs to somebody else. A job has no result yet (retryable).",
        "List the folder and use an existing name; create or upload the artifact again; check the job with "
        "core/job.status and get its result once its state is final.",
        details={**_PATH, "job_id": "the job that does not exist", "state": "of the job that has no result yet"},
    ),
    ErrorKind.ALREADY_EXISTS: KindSpec(
        Code.ALREADY_EXISTS,
        "The destination exists and overwrite is false.",
        "Choose another path, or set overwrite to replace it.",
        details=_PATH,
    ),
    ErrorKind.FILE_TOO_LARGE: KindSpec(
        Code.OUT_OF_RANGE,
        "The file, or the content to write, is larger than the policy's sandbox allows; or an artifact would be "
        "larger than `artifacts.max_bytes`.",
        "Work with a smaller part.",
        details={"size_bytes, max_bytes": "its size, and the limit"},
    ),
    ErrorKind.HTTP_DISALLOWED_HOST: KindSpec(
        Code.PERMISSION_DENIED,
        "No egress entry of the policy matches host, scheme, port and method, or the name resolves to an address "
        "that is not public. Each redirect is checked.",
        "Use an allowed host and method. Another spelling of the same host does not help.",
        details={
            "host, argument": "what was checked",
            "allowed_hosts, allowed_schemes, allowed_ports, allowed_methods, allowed_paths": "what is allowed",
            "redirected_from": "the host that redirected there",
        },
    ),
    ErrorKind.HTTP_TIMEOUT: KindSpec(
        Code.DEADLINE_EXCEEDED,
        "The connection, the response or the whole exchange took too long. Retryable when a repeat cannot cause a "
        "second effect. A POST, PUT, PATCH or DELETE that was sent ends as OUTCOME_UNKNOWN instead, with these "
        "details.",
        "Request less, or raise timeoutMs.",
        retryable=True,
        details={"host": "the host that was called", "timeout_ms": "the timeout of the exchange", **_KEY, **_SENT},
    ),
    ErrorKind.HTTP_TOO_LARGE: KindSpec(
        Code.OUT_OF_RANGE,
        "A body that must be complete (JSON, a download) is larger than maxBytes.",
        "Request less, raise maxBytes where policy allows it, or download to a file.",
        details={"max_bytes": "the bound", "announced_bytes": "the Content-Length, or null"},
    ),
    ErrorKind.NETWORK_ERROR: KindSpec(
        Code.UNAVAILABLE,
        "The name does not resolve, the connection was refused or broke, or TLS failed. Retryable when a repeat "
        "cannot cause a second effect. A POST, PUT, PATCH or DELETE whose connection broke after it was sent ends as "
        "OUTCOME_UNKNOWN instead, with these details.",
        "Check the host. Try again if the error is retryable.",
        retryable=True,
        details={"host": "the host that was called", **_KEY, **_SENT},
    ),
    ErrorKind.IO_ERROR: KindSpec(
        Code.INTERNAL,
        "The file system failed: access denied, busy, too many open files, or the workspace root cannot be "
        "opened. With component `audit` the audit log cannot be written, and no call runs until it "
        "can (retryable, after 1 s). Bytes of an artifact are damaged, or the hub cannot access the artifact store.",
        "Try another path, or try again if the error is retryable. An operator must check the disk.",
        details={
            **_PATH,
            "artifact_id": "the artifact whose bytes are damaged",
            "component": "`audit`",
            "cause": "`closed`, `queue_full` or `disk`",
        },
    ),
    ErrorKind.EXECUTION_ERROR: KindSpec(
        Code.UNKNOWN,
        "A command could not be started, or was killed because it wrote too much output (a non-zero exit code is a "
        "result, not an error). Or a LangChain tool failed, reported a failure, or returned too much. Or a "
        "workflow of n8n or a graph of ComfyUI ran and failed.",
        "Request less of the command or tool, or follow its message.",
        details={
            "command, duration_s": "what ran and for how long",
            "stdout, stderr": "the beginning of what it wrote",
            "limit_bytes, line, source": "the most that a result may hold; where a program failed",
            "node, output": "of a ComfyUI graph: the node that failed, or whose declared output is wrong",
            "cause": "`OUTPUT_MISSING`, `_TYPE`, `_NAME`, `_TOO_LARGE`, `_TOO_MANY` or `_DAMAGED`: what is wrong",
            "node_class, exception": "the class of the node that failed, and the type of its or a program's exception",
            "filename, items, keys": "the file concerned, how many there were, or the keys that the node returned",
        },
    ),
    ErrorKind.BUDGET_EXCEEDED: KindSpec(
        Code.RESOURCE_EXHAUSTED,
        "The request has made all its calls (budget.max_tool_calls), or budget.timeout is zero. Or nothing more may be "
        "stored: files, artifacts or remembered items would exceed a bound of the caller or its tenant, or take the "
        "reserve of the hub's disk (cause `DISK_FULL`); reading and deleting still work. Or a ComfyUI server ran out "
        "of memory (retryable).",
        "Answer with what you have. To store more, first delete what the message names.",
        details={
            "max_tool_calls, used_tool_calls": "calls allowed and made",
            "timeout_s": "the time allowed",
            "limit, quota_bytes, used_bytes, quota, used": "the setting or key of the policy that bounds what is "
            "stored, the bound, and what is used of it",
            "free_bytes, reserve_bytes, errno": "the free space of the disk, how much of it is the reserve, and what "
            "the system answered",
            "cause": "`DISK_FULL`: the disk or its reserve; `DISK_SHARE`: the caller stores as much there as is left "
            "for all others; `OUT_OF_MEMORY`: the device of a ComfyUI server has too little memory for these arguments",
            "node, node_class, exception": "the node that failed",
        },
    ),
    ErrorKind.RATE_LIMITED: KindSpec(
        Code.RESOURCE_EXHAUSTED,
        "A rate or quota is used up, too many calls are in flight, or this one would wait longer than its "
        "deadline. Or a limit of the hub is reached: open jobs (`jobs.max_open`, half of them for one caller), "
        "idempotency keys, undecided approvals of one caller. retry_after is set where the hub knows it.",
        "If the error is retryable, wait for retry_after, then send the same call; send fewer at once. Otherwise "
        "(more than five minutes) continue without the call, or tell the user when it will be possible.",
        retryable=True,
        details={
            "limit": "the policy's limit and its counter, or the limit of the hub: `jobs.max_open`, `idempotency`, "
            "`approvals.max_pending`, `large-arguments`, `tenants.max_open_jobs`, `tenants.max_open_approvals`",
            "rate_per_s, quota": "the limit that was exceeded",
            "passes_in_s": "seconds until the limit lets a call pass, if that is too long to wait for",
            "whose": "of idempotency keys: `all`, or `yours`: the caller holds as many as are left for all others",
            "waits_for": "the upstream or limit whose slots are taken",
        },
    ),
    ErrorKind.CIRCUIT_OPEN: KindSpec(
        Code.UNAVAILABLE,
        "The upstream failed repeatedly, for this principal or for several, so its circuit breaker is open. "
        "retry_after is set.",
        "Use another tool, or wait.",
        retryable=True,
        details={"waits_for": "the upstream"},
    ),
    ErrorKind.TIMEOUT: KindSpec(
        Code.DEADLINE_EXCEEDED,
        "The deadline passed before the tool was started (nothing happened), or while it ran. A call with an "
        "effect that timed out, such as a command, ends as OUTCOME_UNKNOWN instead, with these details.",
        "Request less, or allow more time.",
        retryable=True,
        details={
            "late_by_s": "how long before the start the deadline had passed",
            "default_timeout_s, timeout_s": "the tool's own timeout; the operator's limit for the call",
            "idle_timeout_s": "the operator's limit for a call that neither answers nor reports progress",
            "deadline_unix_ms": "the deadline of a job that could not finish",
            "command, duration_s, stdout, stderr": "the command that did not finish",
            "first_call_id": "the call with this idempotency_key that still runs; send the same call for its answer",
            "max_runtime_s, stopped": "the limit of a ComfyUI graph; true: its server, or a database, ended the work",
        },
    ),
    ErrorKind.CANCELLED: KindSpec(
        Code.CANCELLED,
        "The caller cancelled, or its connection broke. The message says whether a cancelled job had started and "
        "may have had part of its effect.",
        "Nothing.",
        details={"by": "`somebody else`: the work was stopped on its server"},
    ),
    ErrorKind.UPSTREAM_ERROR: KindSpec(
        Code.UNAVAILABLE,
        "The remote server answered with an error status, with an invalid response (JSON, HTTP/1.1, encoding), "
        "with far more framing than content, with JSON of too many values, or with too many redirects; or an MCP "
        "server reported that its tool failed (`isError`). `upstream` holds the status and a redacted excerpt. "
        "Retryable for statuses after which nothing was processed (425, 429, 503; 521, 523, 525, 526, 530: not "
        "reached), for 408, 499 and all other 5xx where the request is safe to repeat (GET, HEAD, OPTIONS, or with a "
        "key), and for 409 with a key; `retry_after` is the server's own. When a gateway gives up on a request that "
        "may have an effect (408, 499, 502, 504, 520, 522, 524), the error is OUTCOME_UNKNOWN instead.",
        "Correct the request as the excerpt says, or wait if the error is retryable.",
        retryable=True,
        details={
            "host": "the host that answered",
            "reason": "`too_many_values`: its JSON has more values than the hub reads at once",
            "data": "`data` of an MCP server's JSON-RPC error; of more than 4 KiB only both ends, as a text",
            "cause": "`REFUSED` or `NODE_ERRORS`: a ComfyUI server did not accept the graph (not retryable)",
            "node_errors": "what it rejected, by node, class, input and type",
            "content, structuredContent": "of a tool of an MCP server: its blocks, if they are more than the text of "
            "the message, and its structured content; bounded and redacted, bytes as artifacts",
            **_KEY,
        },
    ),
    ErrorKind.OUTPUT_SCHEMA_INVALID: KindSpec(
        Code.DATA_LOSS,
        "The tool ran, and its result does not match its own output schema. The result is withheld.",
        "Do not repeat a call that may have had an effect; use another tool.",
    ),
    ErrorKind.IDEMPOTENCY_CONFLICT: KindSpec(
        Code.ABORTED,
        "The idempotency_key was already used with other arguments, or before the tool's definition changed.",
        "Use a new key for a new effect.",
        details={"differs": "`args` or `tool_digest`", "first_call_id, job_id": "the call, or job, that has the key"},
    ),
    ErrorKind.OUTCOME_UNKNOWN: KindSpec(
        Code.UNKNOWN,
        "A call with an effect timed out, was cut off, was sent and not answered, failed by a defect, or its hub "
        "stopped, and it is not safe "
        "to repeat. The effect may have happened. Such a job ends LOST, or TIMED_OUT when its deadline had passed. "
        "`details` also has the entries of the kind in `cause`.",
        "Check whether the effect happened before calling again.",
        details={
            "cause": "the kind it would have been without an effect (INTERNAL: a defect, see the log under `call_id`), "
            "or what cut it off: `RUNNER_DIED`, `HUB_STOPPED`, or `START_UNCLEAR`, `END_UNCLEAR`, `RESULT_UNCLEAR`: "
            "what is unknown about the work on a remote server",
            "runs, reason": "how often a process took the job, and what the remote server said",
            "was_sent": "true: its request was sent, and nobody knows whether it was processed",
            "call_id": "of a defect: give it to the operator",
            "first_call_id": "the call with the same idempotency_key whose outcome is unknown",
        },
    ),
    ErrorKind.INTERNAL: KindSpec(
        Code.INTERNAL,
        "A defect in the hub or a tool, or an unexpected exception of a custom tool, in a call without an effect: "
        "before the tool was started, or in a tool that only reads or is safe to repeat (otherwise "
        "OUTCOME_UNKNOWN). The traceback is in the log (`call_crashed`) under the call id, never in the answer.",
        "Try another tool, and tell the user the call id.",
        details={
            "call_id": "give it to the operator",
            "nothing_happened": "true: the adapter of a tool with effects sent nothing",
        },
    ),
    ErrorKind.TOOL_CHANGED: KindSpec(
        Code.FAILED_PRECONDITION,
        "The tool's definition no longer matches `expected_tool_digest`. Nothing was done.",
        "Get the tool again, check that the call still fits, and call with the new digest.",
        details={"tool_digest, expected_tool_digest": "the current digest, and the expected one"},
    ),
}
