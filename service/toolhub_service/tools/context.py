"""What a running tool gets: its workspace, its limits, and where to report progress and evidence."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic

from msgspec import Struct, field, to_builtins
from msgspec.json import encode as json_encode
from msgspec.structs import fields
from typing_extensions import TypeVar

from toolhub_service.domain.artifact import OCTETS, Artifact, ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call, Question, QuestionAsked, Reply
from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import EventSink, InnerCalls
from toolhub_service.domain.result import Evidence, EvidenceType, Progress
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.verdict import Constraints
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.tools.workspace.workspace import Workspace

_DETAILS_MAX_BYTES: Final = 4 * 1024


class ToolProgress(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far a tool has come. A subclass adds fields of its own, which callers read as `details_json`."""

    step: float
    """Units done so far, 0 or more."""
    total: float | None = None
    """Units in all; None when unknown."""
    unit: str = ""
    """What is counted, such as `bytes` or `rows`; empty: plain steps."""
    message: str = ""
    """One line for a person."""
    eta_s: float | None = None
    """Estimated seconds until the end; None when unknown."""

    @property
    def percentage(self) -> float:
        """0 to 100; 0 while the total is unknown."""
        # Totals are estimates, which a step may exceed.
        return min(100.0, self.step / self.total * 100) if self.total else 0.0

    def as_progress(self) -> Progress:
        """Return the progress. Fields of a subclass that take more than 4 KiB as JSON are left out, so that no report
        ends a call."""
        members = to_builtins(self)
        own = {name: value for name, value in members.items() if name not in _COMMON}
        details = json_encode(own) if own else b""
        kept = details if len(details) <= _DETAILS_MAX_BYTES else b""
        return Progress(self.step, self.total, self.unit, self.message, self.eta_s, kept)


_COMMON: Final = frozenset(field.encode_name for field in fields(ToolProgress))
Report = TypeVar("Report", bound=ToolProgress, default=ToolProgress)


class ToolContext(Struct, Generic[Report], eq=False):
    """The context of one call. The adapter creates it, and closes it when the call ends."""

    call_id: str
    principal_id: str
    request_id: str
    deadline_s: float
    """Loop clock."""
    constraints: Constraints
    sink: EventSink
    open_workspace: Callable[[], Workspace]
    idempotency_key: str = ""
    reply: Reply | None = None
    """A person's reply to the last question of this call; for `ask`."""
    call: Call | None = None
    """The original call; with `artifact_service`, which stores output in its name."""
    artifact_service: ArtifactService | None = None
    """Stores and reads large values; None where the hub has no artifact store."""
    calls: Callable[[], InnerCalls] | None = None
    """Returns the inner calls of this call; None where none can be made."""
    decide_statement: Callable[[Statement], None] | None = None
    """Decides the call again, with its SQL as the database reads it. Raises ToolFailure where the policy refuses it;
    None where no policy can be asked."""
    evidence: list[Evidence] = field(default_factory=list)
    artifacts: list[ArtifactRef] = field(default_factory=list)
    truncated: bool = False
    """Set by a tool that truncated its result."""
    is_large: bool = False
    """Set by a tool whose result has so many values that it is validated and serialized in a thread."""
    upstream_fails: bool = False
    """Set by a tool whose successful result reports a failing upstream: its breaker counts it."""
    passing: ToolError | None = None
    """Set by a tool whose successful result is an answer that may soon be another one; see `Outcome`."""
    raw: JsonValue = None
    mask: Mask | None = None
    """Masks the secrets given to `hide`; None: there are none."""
    opened: Workspace | None = None
    """The workspace, once it has been used."""
    _asked: int = 0
    _secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Leave out the secrets given to `hide`."""
        return f"ToolContext(call_id={self.call_id!r})"

    @property
    def workspace(self) -> Workspace:
        """Return the call's folder, created and opened on first use. Raises ToolFailure IO_ERROR when that fails."""
        if self.opened is None:
            self.opened = self.open_workspace()
        return self.opened

    def hide(self, *secrets: str) -> None:
        """Keep these secrets too out of the call's result, error and evidence."""
        self._secrets = (*self._secrets, *secrets)
        self.mask = Mask(self._secrets)

    def report(self, progress: Report) -> None:
        """Report progress to those who follow the call. Call it on the event loop, as often as is useful."""
        self.sink.progress(progress.as_progress())

    def proves(self, type: EvidenceType, ref: str, summary: str, *, sha256: str = "", **attributes: str) -> None:
        """Add one piece of evidence."""
        self.evidence.append(Evidence(type=type, ref=ref, summary=summary, sha256=sha256, attributes=attributes))

    def ask(self, message: str, schema: JsonObject) -> JsonObject:
        """Return a person's answer to this question; `schema` is an object's, empty for a plain yes.

        Raises QuestionAsked, which must propagate, until the question is answered: the call ends, and runs again from
        the beginning with the answer. So always ask in the same order, and before any effect. An answer of no ends the
        call.
        """
        answers = self._answers()
        if self._asked == len(answers):
            # It carries the earlier answers: no process keeps anything of a waiting call.
            raise QuestionAsked(Question(message, schema, continuation=json.dumps(answers)))
        self._asked += 1
        return answers[self._asked - 1]

    def _answers(self) -> list[JsonObject]:
        """Return the answers in the order of the questions; the continuation of the last question carries the earlier
        ones."""
        if self.reply is None:
            return []
        return [*json.loads(self.reply.continuation), self.reply.answer or {}]

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str = OCTETS, name: str = "") -> Artifact | None:
        """Store a large output as an artifact of the result; return None where the hub has no artifact store.

        Raises ToolFailure FILE_TOO_LARGE, BUDGET_EXCEEDED, IO_ERROR, TOOL_UNAVAILABLE: an optional output should then
        be left out, with evidence that says so.
        """
        if self.artifact_service is None or self.call is None:
            return None
        artifact = await self.artifact_service.keep(chunks, call=self.call, media_type=media_type, name=name)
        self.artifacts.append(artifact.ref)
        return artifact

    def note_storage(self) -> None:
        """Say in the evidence that the caller has stored something and is near its bound."""
        account = None if self.opened is None else self.opened.account
        if account is not None and (notice := account.notice):
            self.proves(EvidenceType.TEXT, "storage:workspaces", notice)

    def close(self) -> None:
        """Release the workspace's descriptor."""
        if self.opened is not None:
            self.opened.close()
            self.opened = None
