"""What a running tool is given: its workspace, its bounds, where to report and where to lay evidence."""

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
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import EventSink, InnerCalls
from toolhub_service.domain.result import Evidence, EvidenceType, Progress
from toolhub_service.domain.verdict import Constraints
from toolhub_service.guards.secrets import Mask
from toolhub_service.tools.workspace import Workspace

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
        # Totals are estimates, and a step may go beyond them.
        return min(100.0, self.step / self.total * 100) if self.total else 0.0

    def as_progress(self) -> Progress:
        """Fields of its own that take more than 4 KiB as JSON are left out: no report ends a call."""
        members = to_builtins(self)
        own = {name: value for name, value in members.items() if name not in _COMMON}
        details = json_encode(own) if own else b""
        kept = details if len(details) <= _DETAILS_MAX_BYTES else b""
        return Progress(self.step, self.total, self.unit, self.message, self.eta_s, kept)


_COMMON: Final = frozenset(field.encode_name for field in fields(ToolProgress))
Report = TypeVar("Report", bound=ToolProgress, default=ToolProgress)


class ToolContext(Struct, Generic[Report], eq=False):
    """One call's surroundings. Made by the adapter, gone when the call ends."""

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
    """What a person has said to the last question of this call; for `ask`."""
    call: Call | None = None
    """The call as it was asked; with `artifact_service`, whose output is kept in its name."""
    artifact_service: ArtifactService | None = None
    """Where large values are kept and read; None where the hub keeps none."""
    calls: Callable[[], InnerCalls] | None = None
    """Calls that this call makes in turn; None where none can be made."""
    evidence: list[Evidence] = field(default_factory=list)
    artifacts: list[ArtifactRef] = field(default_factory=list)
    truncated: bool = False
    """Set by a tool that cut its result."""
    is_large: bool = False
    """Set by a tool whose result holds so many values that it is checked and written in a thread."""
    upstream_fails: bool = False
    """Set by a tool that hands on as a result what tells of a failing upstream: its breaker counts it."""
    raw: JsonValue = None
    mask: Mask | None = None
    """Hides what `hide` was given; None: nothing."""
    opened: Workspace | None = None
    """The workspace, once it was used."""
    _asked: int = 0
    _secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without what `hide` was given."""
        return f"ToolContext(call_id={self.call_id!r})"

    @property
    def workspace(self) -> Workspace:
        """The call's folder, made and opened on first use. Raises ToolFailure IO_ERROR when it cannot be."""
        if self.opened is None:
            self.opened = self.open_workspace()
        return self.opened

    def hide(self, *secrets: str) -> None:
        """Keep these, too, out of the call's result, error and evidence."""
        self._secrets = (*self._secrets, *secrets)
        self.mask = Mask(self._secrets)

    def report(self, progress: Report) -> None:
        """Tell whoever follows the call how far it has come. To be called on the event loop, as often as is useful."""
        self.sink.progress(progress.as_progress())

    def proves(self, type: EvidenceType, ref: str, summary: str, *, sha256: str = "", **attributes: str) -> None:
        """Lay down one piece of evidence."""
        self.evidence.append(Evidence(type=type, ref=ref, summary=summary, sha256=sha256, attributes=attributes))

    def ask(self, message: str, schema: JsonObject) -> JsonObject:
        """What a person answers to this question; `schema` is an object's, empty for a plain yes.

        Raises QuestionAsked, to be let through, until it is answered: the call is over then, and runs again from the
        beginning with the answer. So ask always in the same order, and before anything is done. A no ends the call.
        """
        answers = self._answers()
        if self._asked == len(answers):
            # The earlier answers travel in it: no process keeps anything of a call that waits.
            raise QuestionAsked(Question(message, schema, continuation=json.dumps(answers)))
        self._asked += 1
        return answers[self._asked - 1]

    def _answers(self) -> list[JsonObject]:
        """In the order of the questions; earlier ones travel in the continuation of the last."""
        if self.reply is None:
            return []
        return [*json.loads(self.reply.continuation), self.reply.answer or {}]

    async def keep(self, chunks: AsyncIterator[bytes], *, media_type: str = OCTETS, name: str = "") -> Artifact | None:
        """Keep a large output as an artifact that travels with the result; None where the hub keeps none.

        Raises ToolFailure FILE_TOO_LARGE, BUDGET_EXCEEDED, IO_ERROR, TOOL_UNAVAILABLE: an output that is a courtesy
        should then be left out, with evidence that says so.
        """
        if self.artifact_service is None or self.call is None:
            return None
        artifact = await self.artifact_service.keep(chunks, call=self.call, media_type=media_type, name=name)
        self.artifacts.append(artifact.ref)
        return artifact

    def close(self) -> None:
        """Release the workspace's descriptor."""
        if self.opened is not None:
            self.opened.close()
            self.opened = None
