"""What a caller states: the circumstances of a call, which tools, and how to reach the hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypedDict

import grpc
from google.protobuf.duration_pb2 import Duration

from toolhub.v1 import approval_pb2, call_pb2, job_state_pb2, tool_pb2


@dataclass(frozen=True, slots=True)
class Context:
    """Who asked for what piece of work, and what it may spend. Empty fields are left to the hub."""

    request_id: str = ""
    """One user request, shared by all its calls; names the workspace."""
    task_id: str = ""
    session_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    permissions: tuple[str, ...] = ()
    """Capabilities the call may use; empty: all that the caller holds."""
    timeout_s: float | None = None
    """What the hub may spend on the call, retries included, also of a job. How long the caller waits is `timeout`."""
    max_retries: int | None = None
    max_tool_calls: int | None = None
    """Calls of the request in all."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_proto(self) -> call_pb2.ExecContext:
        budget = call_pb2.CallBudget(max_retries=self.max_retries, max_tool_calls=self.max_tool_calls)
        if self.timeout_s is not None:
            timeout = Duration()
            timeout.FromMicroseconds(round(self.timeout_s * 1_000_000))
            budget.timeout.CopyFrom(timeout)
        return call_pb2.ExecContext(
            request_id=self.request_id,
            task_id=self.task_id,
            session_id=self.session_id,
            agent_id=self.agent_id,
            user_id=self.user_id,
            permissions=self.permissions,
            budget=budget,
            labels=self.labels,
        )


_MEANT = {
    "dry_run": "call Hub.dry_run(…), which changes nothing",
    "request_id": "put it into context=Context(request_id=…)",
    "timeout_s": "write timeout=…, in seconds",
}


def refuse_unknown(options: Iterable[str], known: type) -> None:
    """Raises TypeError for an option that the TypedDict `known` does not have: a misspelt `plan_digest`, or a `dry_run`
    that has no effect, must not end in a call of another kind than was meant."""
    names = known.__annotations__
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, 1)
            advice = _MEANT.get(name) or (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}")
            raise TypeError(f"unknown option {name!r}: {advice}")


ExportForm = Literal["openai", "openai_strict", "anthropic", "gemini", "mcp"]
"""Whose form of tool definition; docs/model-forms.md says what each accepts."""


class CallOptions(TypedDict, total=False):
    """What may be said of a call beside its tool and arguments."""

    purpose: str
    """Why, in a sentence; required by tools that change something. It goes into the audit log."""
    idempotency_key: str
    """The same key and arguments have one effect, however often they are sent."""
    plan_digest: str
    """Of a plan that a dry run has shown; `Hub.commit` sends it."""
    approval_id: str
    """Of an approval that a person has granted."""
    expected_tool_digest: str
    """`ToolSpec.digest` of the tool as it was shown to the model: with another definition the call is refused."""
    args_form: ExportForm
    """The form of `Hub.export` whose definition a model wrote the arguments for; `Hub.run_tool_call` sets it. Without
    it, a program wrote them."""
    context: Context
    """In the place of the hub's. Without a `request_id` it has the hub's, and with it the workspace."""
    timeout: float | None
    """Seconds for the whole call, waiting for a hub and repeats included; sent to the hub as the deadline of the RPC.
    What takes longer is an Answer with TIMEOUT, or raises DeadlineExceeded. Of `Hub.submit_job` it bounds the
    submission; the job's own time is `Context.timeout_s`."""


class ToolFields(TypedDict, total=False):
    """Which tools: all conditions must hold; of a condition with several values one must."""

    names: Sequence[str]
    """Globs, such as `core/fs.*`."""
    kinds: Sequence[tool_pb2.ToolKind.ValueType]
    capabilities: Sequence[str]
    """All of them."""
    tags: Sequence[str]
    sources: Sequence[str]
    states: Sequence[tool_pb2.ToolState.ValueType]
    """Without: ACTIVE and UNAVAILABLE."""


class WatchedJobFields(TypedDict, total=False):
    """Which jobs: all conditions must hold."""

    tool: str
    """A name or a glob."""
    request_id: str
    task_id: str
    principal: str
    """Whose; without: the caller's own for agents, everybody's for operators and auditors."""


class JobFields(WatchedJobFields, total=False):
    """Which jobs of a list."""

    states: Sequence[job_state_pb2.JobState.ValueType]
    """One of them; without: every one."""


class ArtifactFields(TypedDict, total=False):
    """Which artifacts: all conditions must hold."""

    task_id: str
    call_id: str
    """Of the call that made them."""
    sha256: str
    """Of exactly this content, 64 lower-case hex digits: whether the hub has it already."""
    principal: str
    """Whose; without: the caller's own for agents, everybody's for auditors."""


class ApprovalFields(TypedDict, total=False):
    """Which approvals: all conditions must hold."""

    states: Sequence[approval_pb2.ApprovalState.ValueType]
    """One of them; without: every one."""
    tool: str
    """A name or a glob."""
    principal: str
    """Who asked."""


class ConnectOptions(TypedDict, total=False):
    """How to reach a hub, and under which circumstances to call it; see `toolhub_client.channel.target` for what comes
    from the environment where it is left out."""

    api_key: str | Callable[[], str]
    """A key or a token, or a function that gives the one that is valid now, at once."""
    ca_file: str | Path
    cert_file: str | Path
    key_file: str | Path
    credentials: grpc.ChannelCredentials
    """In the place of the files."""
    context: Context
    """What every call is made under unless it brings its own. Without a `request_id` all calls share that of
    TOOLHUB_REQUEST_ID, or one that is made up here, and with it a workspace."""
    automatic_keys: bool
    """Give each call without an idempotency key one, so that it may be repeated when its connection breaks."""
    retry_s: float
    """How long to wait for a hub to answer, and to repeat what may be repeated: 10 s by default; 0 asks once."""
    options: Sequence[tuple[str, str | int]]
    """Of the gRPC channel."""
