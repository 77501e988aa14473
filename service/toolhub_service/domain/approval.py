"""One question to a person: may this principal make exactly this call, once? Or what its tool asks in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import astuple

from toolhub_service.domain.call import Call, Owners, PlannedCall, Principal, Question
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import IdentityEnum
from toolhub_service.domain.verdict import Verdict


class ApprovalState(IdentityEnum):
    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    USED = "USED"


# Fields of a binding in the first version of stores. Stores find an approval by all of its parts: fields that came
# later are left out while they are empty, so that a record of an older hub is still found.
_FIRST_PARTS = 8


class Binding(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an approval is given for. Anything else is another call and needs another approval."""

    principal: str
    tool: str
    tool_digest: str
    """sha256 (hex) of the definition."""
    args_digest: str
    """sha256 (hex) over the canonical, completed arguments."""
    policy_revision: str
    job_id: str = ""
    """The job that waits for it; empty when the caller has to invoke again."""
    agent_id: str = ""
    """For whom the principal acts; empty: for itself."""
    user_id: str = ""
    """For whom the principal acts; empty: for itself."""

    question_digest: str = ""
    """sha256 (hex) over the question's message and schema; empty when a rule asks, not the tool."""
    workspace: str = ""
    """As `Preconditions.workspace`."""
    state: str = ""
    """As `Preconditions.state`, when it was asked."""
    actors: str = ""
    """Ids of those who act for the principal, by its token, with spaces between; empty: it acts itself."""

    @property
    def parts(self) -> list[str]:
        """All that it names, without empty ones at the end that earlier versions did not know: stores find by them."""
        parts: list[str] = list(astuple(self))
        while len(parts) > _FIRST_PARTS and not parts[-1]:
            del parts[-1]
        return parts

    def is_asked_by(self, principal: Principal) -> bool:
        """Whether it is a request of this principal's own, or of one that acts for it, whoever carried it."""
        # All of them: nobody may decide about a request that it has somebody else make for it.
        own = {self.principal, self.agent_id, self.user_id, *self.actors.split()}
        return not own.isdisjoint((principal.id, *principal.actors))


class Approval(Struct, frozen=True, gc=False):
    """An approval as the store keeps it. Every change is a new record with the next version."""

    approval_id: str
    """Minted by the hub."""
    binding: Binding
    state: ApprovalState
    tool_version: str
    args_summary_json: str
    """The arguments as an approver sees them, at most 16 KiB of JSON: no known secret, no run like a credential."""
    rule_id: str
    reason: str
    """The rule's, for the person."""
    purpose: str
    """The caller's; untrusted text."""
    call_id: str
    """The call that asked."""
    request_id: str
    requested_at_unix_ms: int
    expires_at_unix_ms: int
    """When it expires, decided or not."""
    approvers: tuple[str, ...] = ()
    """Principals or globs that may decide; empty: whoever has the approver role."""
    decided_at_unix_ms: int = 0
    decided_by: str = ""
    comment: str = ""
    used_at_unix_ms: int = 0
    used_by_call_id: str = ""
    version: int = 1
    """Rises by 1 with every change. What compare-and-set compares."""
    question: Question | None = None
    """What the tool asks in the middle of the call, redacted but for its continuation; None: a rule asks."""
    round: int = 0
    """Which question of this call it is, from 1; 0: a rule asks."""
    covers_rule_id: str = ""
    """The rule whose own approval the run that asked had used up: the run that follows is the same effect."""
    answer: JsonObject | None = None
    """To the question, fit for its schema; None until there is one. As secret as the continuation."""

    def __repr__(self) -> str:
        """All fields but the answer, which is secret."""
        shown = [f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "answer"]
        return f"Approval({', '.join(shown)})"


class ApprovalFilter(Struct, frozen=True, gc=False):
    """Which approvals to read; empty fields match everything, and filled ones are joined by AND."""

    states: frozenset[ApprovalState] = frozenset()
    principal: str = ""
    tool: str = ""
    """A name or a glob (fnmatch, case-sensitive)."""
    owners: Owners | None = None


# The port of approvals: where they are kept.


class ApprovalStore(Protocol):
    """Approvals, whoever else shares the store; changes are kept by compare-and-set on `version`.

    What a method has returned from is durable. Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached.
    """

    # The store compares bindings, for two hubs may get the same call twice at once, and a person is to be asked once.
    async def create(self, approval: Approval) -> Approval | None:
        """Keep a new one. None when that was done, else the PENDING or APPROVED one that has the same binding."""

    async def get(self, approval_id: str) -> Approval | None: ...

    async def put(self, approval: Approval) -> bool:
        """Replace the record whose version is one less. False when another change came first, or it is gone."""

    async def page(
        self, where: ApprovalFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Approval], int]:
        """In (requested_at_unix_ms, approval_id) order, newest first, strictly after the cursor, and how many match."""

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Approval]:
        """PENDING and APPROVED ones whose time is over, oldest first."""

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Remove those that ended (REJECTED, EXPIRED, USED) and expired before then; how many were removed."""

    def listen(self, on_event: Callable[[Approval | None], None]) -> None:
        """Tell `on_event` of every change, by this process or any other; None after a gap. As `JobStore.listen`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class ApprovalGate(Protocol):
    """What the steps ask of approvals."""

    async def settle(self, planned: PlannedCall, verdict: Verdict) -> Approval | None:
        """The approval that covers exactly this call, or answers what it asked. Step 4, when the verdict is
        REQUIRE_APPROVAL, or the call that policy allows names an approval; None: it needs none.

        Raises ToolFailure APPROVAL_REQUIRED, a person being asked by then, or APPROVAL_REJECTED.
        """

    async def ask_question(
        self, planned: PlannedCall, verdict: Verdict, question: Question, earlier: Approval | None
    ) -> NoReturn:
        """Step 6 has ended with a question: a person is asked. `earlier`: the approval that this run has used up.

        Raises ToolFailure APPROVAL_REQUIRED, or UPSTREAM_ERROR for what cannot be asked.
        """

    async def use(self, approval: Approval, call: Call) -> None:
        """Use it up, durably, before the effect. Raises ToolFailure when another call was faster."""
