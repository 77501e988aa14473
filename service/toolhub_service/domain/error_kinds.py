"""The table of tool errors: what each kind means, what a model should do, whether waiting can help, its gRPC code.

docs/errors.md, the clients' tables and the status of an RPC error of the same meaning are made from it, in its order.
tests/unit/domain/test_error_table.py checks the details of every call site against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from toolhub_service.domain.error_spec import Code, KindSpec


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

ERROR_KINDS: Final[Mapping[ErrorKind, KindSpec]] = {
    ErrorKind.TOOL_NOT_FOUND: KindSpec(
        Code.NOT_FOUND,
        "No tool has that name.",
        "Take a name from `did_you_mean`, or search by what the tool should do. Do not guess names.",
        details={"did_you_mean": "similar names that the caller may know of"},
    ),
    ErrorKind.TOOL_QUARANTINED: KindSpec(
        Code.FAILED_PRECONDITION,
        "The definition that the tool's source gives was never approved, differs from the approved one, was rejected, "
        "or cannot be used (a broken schema).",
        "Use another tool. An operator must decide.",
        details={"reason": "why, and the command with which an operator looks at it"},
    ),
    ErrorKind.TOOL_UNAVAILABLE: KindSpec(
        Code.UNAVAILABLE,
        "The tool is listed but cannot run now: its source cannot be reached, or a store that the call needs (jobs, "
        "idempotency keys, approvals, artifacts) cannot: nothing was done, and retry_after is set. Or a remote side "
        "certainly did not take the work. Not retryable where an operator must act first: a built-in or custom tool "
        "lacks something on the machine or could not be loaded, the tool was disabled, or the policy wants bubblewrap "
        "for commands and it does not work here.",
        "Repeat, after retry_after where it is set, only when the error says retryable; else use another tool.",
        retryable=True,
        details={
            "reason": "why it is not active, or what is wrong with the store, for an operator; of n8n "
            "`WEBHOOK_UNKNOWN`, `WEBHOOK_METHOD`, `WEBHOOK_AUTH`",
            "state": "`UNAVAILABLE` or `DISABLED`",
            "store": "`redis` or `postgres`: which shared store",
            "source": "the source whose server is not connected",
            "server": "its host, port and database",
            "component": "`store`: the hub's own file",
            "cause": "`disk`, `record`, `closed` or `start`: what is wrong with it",
            "starts": "how often the work was sent to the remote side",
            "job_id": "the job that was kept, and that cannot be read back now (not retryable)",
            "backends": "of a ComfyUI source: why each server did not take the work",
            "setting": "the key of sources.yaml that an operator must correct for n8n (not retryable)",
            "may_be_job_id": "the job that may have been kept, or not; look there before submitting again (not "
            "retryable without an idempotency_key)",
        },
    ),
    ErrorKind.INPUT_SCHEMA_INVALID: KindSpec(
        Code.INVALID_ARGUMENT,
        "The arguments break the tool's input schema. They are validated as sent, before defaults are filled in.",
        "Repair every entry of `violations` (path, keyword, what was expected, a hint), then call again.",
    ),
    ErrorKind.INVALID_INPUT: KindSpec(
        Code.INVALID_ARGUMENT,
        "The arguments cannot be read as strict JSON, or fit the schema and still make no sense to the tool: a "
        "malformed path, URL, command, pattern or query, an ambiguous edit, a missing purpose.",
        "Do what the message says and call again.",
        details={
            "reason, got": "how the JSON or the query is broken",
            "containers, members, separators": "how many arrays and objects, members and items one call may have",
            "field, argument, encoding, function": "which part is wrong",
            "call_id": "of a session: the call in flight whose name was given to a second one",
            "position, character, line, lines, column, at_byte, at_index": "where it is wrong",
            "found, expected": "what was there and what was wanted",
            "encodings, functions, near": "what would be accepted",
            "max_bytes, max_chars, max_depth, max_nesting, max_steps, max_artifacts": "the bound that was passed",
            "artifact_id, size_bytes": "the artifact among the arguments that is no UTF-8 text, or the size of all",
            **_PATH,
            "node_errors": "what ComfyUI finds wrong with the arguments, by node, class, input and type",
            "cause": "`UPLOAD_REFUSED`: ComfyUI does not take the artifact as an input",
        },
    ),
    ErrorKind.POLICY_DENIED: KindSpec(
        Code.PERMISSION_DENIED,
        "No grant names the caller or covers the tool's capabilities; a DENY rule applies, or a condition could not be "
        "evaluated; the command, its flags or its environment are not in the grammar, or the command is a danger that "
        "no policy allows; replacing files is not allowed.",
        "Stay inside what details allow, or give up and say so; repeating changes nothing. `remedy` is for the "
        "operator: it holds the lines to add to policy.yaml.",
        details={
            "missing_capabilities": "what the grants, or the call's own permissions, leave out",
            "principal": "the caller that was checked",
            "allowed_commands, allowed_subcommands, allowed_flags, argument_pattern, max_arguments, "
            "settable_variables": "what the grammar takes",
            "condition_fault": "true: the condition of the rule could not be evaluated",
            "command, argument": "what was checked",
            "danger": "the rule of the danger that no policy allows, such as `delete-everything`",
        },
    ),
    ErrorKind.PERMISSION_DENIED: KindSpec(
        Code.PERMISSION_DENIED,
        "The message's agent_id or user_id names someone else than the verified caller, and the policy does not let "
        "the caller act for others.",
        "Leave agent_id and user_id out.",
        details={"principal": "the verified caller"},
    ),
    ErrorKind.APPROVAL_REQUIRED: KindSpec(
        Code.FAILED_PRECONDITION,
        "A REQUIRE_APPROVAL rule applies, and a person has been asked: the approval in details is open, made by this "
        "call or by an equal one before it. Also when the approval_id that was sent cannot be used, because it is not "
        "the caller's, was given for another call, or has been used: the one in details is the right one then. As a "
        "job, such a call waits in AWAITING_APPROVAL and continues by itself. Also when the tool itself asks a person "
        "something in the middle of the call: the approval carries the question, and the yes an answer.",
        "Tell the user that a person must decide; then invoke again with the approval_id and the very same arguments. "
        "Do not look for a way around.",
        details={
            "approval_id, approval_state, expires_at": "the approval to wait for: its id, `PENDING` or `APPROVED` (it "
            "may be used now), and when it expires",
            "args_digest": "the digest of the arguments it is for",
            "approval": "expires_s and approvers of the rule",
            "differs": "what changed since the approval that was sent was asked for: `tool`, `tool definition`, "
            "`arguments`, `policy revision`, `job`, `agent`, `user`",
            "question": "what the tool asks, in its own untrusted words: `message`, and the `schema` of the answer",
            "used_approval_id": "the one that another call has just used, or whose answer is void; none to wait for",
        },
    ),
    ErrorKind.APPROVAL_REJECTED: KindSpec(
        Code.PERMISSION_DENIED,
        "A person said no; or nobody decided in time, which counts as no; or a yes was not used in time.",
        "After a no, do not ask for the same again. After an expiry, invoke without approval_id if the call is still "
        "wanted: that asks anew.",
        details={
            "approval_id, approval_state": "which approval, and `REJECTED` or `EXPIRED`",
            "decided_by, comment": "who said no, and the person's own words",
            "expires_at": "when it expired",
        },
    ),
    ErrorKind.PLAN_REQUIRED: KindSpec(
        Code.FAILED_PRECONDITION,
        "A destructive tool, or a REQUIRE_PLAN rule, wants a dry run first; or the plan_digest does not fit the call: "
        "it has expired, is not this hub's, or caller, tool definition, arguments or policy verdict are not those of "
        "the plan.",
        "Invoke with DRY_RUN, look at the plan, then invoke with its plan_digest and the same arguments.",
        details={
            "differs": "`principal`, `tool definition`, `arguments`, `policy verdict`, `workspace`, `expired`, "
            "`forged`, or `state`: what the call would destroy has changed since",
            "effects, plan_digest, expires_in_s": "of `state`: what it would do now, and the plan that fits that",
        },
    ),
    ErrorKind.PATH_OUTSIDE_SANDBOX: KindSpec(
        Code.PERMISSION_DENIED,
        "A path is absolute, leaves the workspace, or leads through a link.",
        "Use a path relative to the workspace, without links.",
        details={**_PATH, "argument": "which argument"},
    ),
    ErrorKind.NOT_FOUND: KindSpec(
        Code.NOT_FOUND,
        "The file or folder does not exist, or an allowed command is not installed. A job or an artifact is unknown, "
        "expired, or somebody else's. A job has no result yet (retryable).",
        "List the folder and use a name that is there; make or upload the artifact again; look at the job with "
        "core/job.status and ask for its result once it is final.",
        details={**_PATH, "job_id": "the job that does not exist", "state": "of the job that has no result yet"},
    ),
    ErrorKind.ALREADY_EXISTS: KindSpec(
        Code.ALREADY_EXISTS,
        "The destination exists and overwrite is false.",
        "Choose another path, or set overwrite where replacing is meant.",
        details=_PATH,
    ),
    ErrorKind.FILE_TOO_LARGE: KindSpec(
        Code.OUT_OF_RANGE,
        "The file, or what would be written, is larger than the policy's sandbox allows; or an artifact would be "
        "larger than `artifacts.max_bytes`.",
        "Work with a smaller part.",
        details={"size_bytes, max_bytes": "how large it is and may be"},
    ),
    ErrorKind.HTTP_DISALLOWED_HOST: KindSpec(
        Code.PERMISSION_DENIED,
        "No egress entry of the policy matches host, scheme, port and method, or the name leads to an address that is "
        "not public. Redirects are checked anew.",
        "Use an allowed host and method. Other spellings of the same host lead nowhere.",
        details={
            "host, argument": "what was checked",
            "allowed_hosts, allowed_schemes, allowed_ports, allowed_methods, allowed_paths": "what would pass",
            "redirected_from": "the host that redirected there",
        },
    ),
    ErrorKind.HTTP_TIMEOUT: KindSpec(
        Code.DEADLINE_EXCEEDED,
        "No connection was made in time, the answer stalled, or the whole exchange took too long. Retryable when "
        "nothing can have happened twice.",
        "Ask for less, or with a larger timeoutMs.",
        retryable=True,
        details={"host": "who was asked", "timeout_ms": "how long the exchange was given", **_KEY},
    ),
    ErrorKind.HTTP_TOO_LARGE: KindSpec(
        Code.OUT_OF_RANGE,
        "A body that must be whole (JSON, a download) is larger than maxBytes.",
        "Ask for less, raise maxBytes where policy lets it, or download to a file.",
        details={"max_bytes": "the bound", "announced_bytes": "the Content-Length or null"},
    ),
    ErrorKind.NETWORK_ERROR: KindSpec(
        Code.UNAVAILABLE,
        "The name does not resolve, nobody accepts the connection, TLS fails, or the connection broke. Retryable when "
        "nothing can have happened twice.",
        "Check the host; try again when the error says so.",
        retryable=True,
        details={"host": "who was asked", **_KEY},
    ),
    ErrorKind.IO_ERROR: KindSpec(
        Code.INTERNAL,
        "The disk refused: denied, full, busy, too many open files, or the workspace root cannot be opened. With "
        "component `audit` the audit log cannot be written, and nothing with an effect runs until it can (retryable, "
        "after 1 s). Bytes of an artifact are damaged, or the hub may not use its place for them.",
        "Try another path; try again when the error says so. Tell the user that an operator must look.",
        details={
            **_PATH,
            "artifact_id": "the artifact whose bytes are damaged",
            "component": "`audit`",
            "cause": "`closed`, `queue_full` or `disk`",
        },
    ),
    ErrorKind.EXECUTION_ERROR: KindSpec(
        Code.UNKNOWN,
        "A command could not be started, or was ended because it flooded its output (a non-zero exit code is a result "
        "and no error). Or a LangChain tool failed, reported a failure, or gave more than may be kept. Or a workflow "
        "of n8n or a graph of ComfyUI ran and failed, in its own words.",
        "Ask the command or the tool for less, or for what its message says.",
        details={
            "command, duration_s": "what ran and for how long",
            "stdout, stderr": "the beginning of what it wrote",
            "limit_bytes": "the most that a result may hold",
            "node, output": "of a ComfyUI graph: the node that failed, or whose declared output is not as it must be",
            "cause": "`OUTPUT_MISSING`, `_TYPE`, `_NAME`, `_TOO_LARGE`, `_TOO_MANY` or `_DAMAGED`: what is wrong",
            "node_class, exception": "the class of the node that failed, and what kind of exception it raised",
            "filename, items, keys": "the file that is meant, how many there were, or what the node put out instead",
        },
    ),
    ErrorKind.BUDGET_EXCEEDED: KindSpec(
        Code.RESOURCE_EXHAUSTED,
        "The calls of this request are used up (budget.max_tool_calls), or budget.timeout is zero, or the caller's "
        "artifacts would pass `artifacts.quota_bytes`. Or a ComfyUI server ran out of memory (retryable).",
        "Answer with what is known.",
        details={
            "max_tool_calls, used_tool_calls": "calls allowed and made",
            "timeout_s": "the time allowed",
            "quota_bytes, used_bytes": "what the caller may own in artifacts, and owns",
            "cause": "`OUT_OF_MEMORY`: the device of a ComfyUI server has too little for these arguments",
            "node, node_class, exception": "the node that failed so",
        },
    ),
    ErrorKind.RATE_LIMITED: KindSpec(
        Code.RESOURCE_EXHAUSTED,
        "A limit's rate or quota is used up, too many calls are in flight, or this one would have to wait longer than "
        "its deadline. Or the hub holds as much as it takes: open jobs (`jobs.max_open`, half of them for one caller), "
        "idempotency keys, undecided approvals of one caller. retry_after is set where the hub knows it.",
        "Wait retry_after, then send the same call; send fewer at once.",
        retryable=True,
        details={
            "limit": "the policy's limit and its counter, or which of the hub's own bounds: `jobs.max_open`, "
            "`idempotency`, `approvals.max_pending`, `large-arguments`",
            "rate_per_s, quota": "the bound that was passed",
            "whose": "of idempotency keys: `all`, or `yours`: the caller holds as many as are left to all others",
            "waits_for": "the upstream or limit whose slots are taken",
        },
    ),
    ErrorKind.CIRCUIT_OPEN: KindSpec(
        Code.UNAVAILABLE,
        "The upstream failed repeatedly, for this principal or for several, and is not asked for a while. retry_after "
        "is set.",
        "Use another tool, or wait.",
        retryable=True,
        details={"waits_for": "the upstream"},
    ),
    ErrorKind.TIMEOUT: KindSpec(
        Code.DEADLINE_EXCEEDED,
        "The deadline passed: before the tool was started (nothing happened), or while it ran. A call with an effect "
        "that ran out of time, a command that did not end among them, ends as OUTCOME_UNKNOWN instead, with these "
        "details.",
        "Ask for less, or allow more time.",
        retryable=True,
        details={
            "late_by_s": "how long ago the deadline passed, when nothing was started",
            "default_timeout_s, timeout_s": "the tool's own limit; what an operator allows, if callers allow more",
            "deadline_unix_ms": "when the time of a job was over that could not run to its end",
            "command, duration_s, stdout, stderr": "the command that did not end",
            "first_call_id": "the call with this idempotency_key that still runs; the same call again gets its answer",
            "max_runtime_s, stopped": "what the template of a ComfyUI graph allows; its server has stopped it",
        },
    ),
    ErrorKind.CANCELLED: KindSpec(
        Code.CANCELLED,
        "The caller cancelled, or its connection broke; in a session or a job somebody is left to read it. The message "
        "says whether a cancelled job had begun and may have had a part of its effect.",
        "Nothing; it was asked for.",
        details={"by": "`somebody else`, who stopped the work on its server"},
    ),
    ErrorKind.UPSTREAM_ERROR: KindSpec(
        Code.UNAVAILABLE,
        "The remote side answered with an error status, something that is not what it should be (JSON, HTTP/1.1, an "
        "encoding), far more chunks or framing than content, JSON of too many values, or too many redirects; or an MCP "
        "server says of its tool that the call failed (`isError`). `upstream` holds status and a redacted excerpt. "
        "Retryable for 408, 425, 429 and 503, for other 5xx where the request can be repeated without harm (GET, HEAD, "
        "OPTIONS, or with a key), and for 409 with a key; `retry_after` is the remote's own.",
        "Correct the request by what the excerpt says, or wait when the error is retryable.",
        retryable=True,
        details={
            "host": "who answered",
            "reason": "`too_many_values`: its JSON has more small parts than are read at once",
            "cause": "`REFUSED` or `NODE_ERRORS`: a ComfyUI server did not take the graph (not retryable)",
            "node_errors": "what it finds wrong, by node, class, input and type",
            **_KEY,
        },
    ),
    ErrorKind.OUTPUT_SCHEMA_INVALID: KindSpec(
        Code.DATA_LOSS,
        "The tool ran, and its result breaks its own output schema. The result is not shown.",
        "Do not repeat a call that may have had an effect; use another tool.",
    ),
    ErrorKind.IDEMPOTENCY_CONFLICT: KindSpec(
        Code.ABORTED,
        "The same idempotency_key was used with other arguments, or before the tool's definition changed.",
        "Use a new key for a new effect.",
        details={"differs": "`args` or `tool_digest`", "first_call_id, job_id": "the call, or job, that has the key"},
    ),
    ErrorKind.OUTCOME_UNKNOWN: KindSpec(
        Code.UNKNOWN,
        "A call with an effect did not answer in time, was cut off, broke in the middle by a defect, or its hub "
        "stopped, and it is not safe to repeat. It may have happened. A job that ended so is LOST, or TIMED_OUT when "
        "its deadline had passed. Its details are also those of the kind in `cause`.",
        "Look whether the effect is there before calling again.",
        details={
            "cause": "the kind it would have been (INTERNAL: a defect, to be found in the log under `call_id`), or "
            "what cut it off: `RUNNER_DIED` and `HUB_STOPPED` end the process of a job; `START_UNCLEAR`, `END_UNCLEAR` "
            "and `RESULT_UNCLEAR` say what a remote side could not tell",
            "runs, reason": "how often a process took the job, and what the remote side said",
            "call_id": "of a defect, what to tell the operator",
            "first_call_id": "the call with the same idempotency_key whose end nobody saw",
        },
    ),
    ErrorKind.INTERNAL: KindSpec(
        Code.INTERNAL,
        "A defect of the hub or a tool, or a custom tool raised what it did not expect, and the call had no effect: "
        "before its tool was asked, or in one that only reads or is safe to repeat (else OUTCOME_UNKNOWN). The "
        "traceback is in the log (`call_crashed`) under the call id, never in the answer.",
        "Try another way; tell the user the call id.",
        details={
            "call_id": "what to tell the operator",
            "nothing_happened": "true where the adapter of a tool with effects knows that nothing was sent",
        },
    ),
    ErrorKind.TOOL_CHANGED: KindSpec(
        Code.FAILED_PRECONDITION,
        "The tool has another definition than that of `expected_tool_digest`, that the caller knows; nothing was done.",
        "Get the tool again, look whether the call still means the same, and call with the digest of now.",
        details={"tool_digest, expected_tool_digest": "the digest of now, and the one that was expected"},
    ),
}
