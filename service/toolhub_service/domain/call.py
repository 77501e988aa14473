"""A call on its way through the steps. The types carry the order: asked, then planned, then granted.

What is made for every call is a NamedTuple: as immutable as a frozen dataclass, and made in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from toolhub_service.domain.errors import ToolError
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.tool import IdentityEnum, ToolSpec
from toolhub_service.domain.verdict import Verdict

# Who is calling: always from a verified credential, never from the message.


class Role(IdentityEnum):
    """Which group of RPCs a principal may use; the tools it may call are a matter of grants and rules."""

    AGENT = "agent"
    """ToolService, JobService, ArtifactService."""
    OPERATOR = "operator"
    """RegistryService besides."""
    APPROVER = "approver"
    """ApprovalService."""
    AUDITOR = "auditor"
    """AuditService."""


Owners = Callable[[str], bool]
"""Whether what the principal of that id owns is meant."""


class TenantBounds(NamedTuple):
    """What all principals of a tenant may hold together; None: as much as each of them may."""

    max_artifact_bytes: int | None = None
    max_artifacts: int | None = None
    max_open_jobs: int | None = None
    max_open_approvals: int | None = None


class Tenancy(Protocol):
    """What a principal of one tenant may know of what others own, by the policy that describes it."""

    @property
    def name(self) -> str:
        """The tenant; `-` for who belongs to none, where there are tenants."""

    @property
    def bounds(self) -> TenantBounds:
        """What the tenant may hold."""

    def holds(self, principal_id: str) -> bool:
        """Whether this principal is of the same tenant."""

    def shows(self, source: str) -> bool:
        """Whether the source is the tenant's, or everybody's."""

    def owns(self, source: str) -> bool:
        """Whether the source is this tenant's alone: its operators may change it."""


class TenantDirectory(Protocol):
    """Whose tenant a principal is, by the policy in force."""

    def tenant_of(self, principal_id: str) -> str:
        """Its name; `-` for a principal of none, `*` for one of the whole hub. Empty for nobody, and where there are no
        tenants."""

    def tenancy_of(self, principal_id: str) -> Tenancy | None:
        """What it may know of others, and what bounds its tenant; None: all, and nothing."""


class SubjectToken:
    """A verified access token. Never shown, never kept in a record, never sent to a source."""

    # No dataclass and no Struct: what prints or encodes those would find the text.
    __slots__ = ("digest", "text")

    def __init__(self, text: str, digest: str) -> None:
        """`digest`: sha256 (hex) of the text."""
        self.text = text
        self.digest = digest

    def __repr__(self) -> str:
        return "SubjectToken(…)"


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller."""

    id: str
    """Unique name: `local`, an API key's name, `issuer:subject` of a token, or a SPIFFE id."""
    roles: frozenset[Role] = frozenset({Role.AGENT})
    may_impersonate: bool = False
    """Whether `agent_id` and `user_id` of a message may differ from `id`."""
    issuer: str = ""
    """The name of the issuer of its token; empty: it has none."""
    actors: tuple[str, ...] = ()
    """Ids of those who act for it, as its token says (RFC 8693): the one that acts now first."""
    permissions: frozenset[str] | None = None
    """Globs over capabilities that its token narrows the grant to; None: the grant as it is."""
    tenant: str = ""
    """Whom its credential names as the customer it belongs to; empty: nobody."""
    groups: frozenset[str] = frozenset()
    """As its issuer names them; they mean nothing without `issuer`."""
    # Not compared: it is the policy's view, another object after each reload, of one and the same principal.
    tenancy: Tenancy | None = field(default=None, repr=False, compare=False)
    """Bounds what it sees of others; None: its roles alone do, for there are no tenants or it is of the whole hub."""
    key: str = field(init=False, compare=False, repr=False)
    """The same for two that a policy cannot tell apart; the id alone where a credential says no more than that."""

    def __post_init__(self) -> None:
        key = self.id
        if self.issuer or self.actors or self.tenant or self.groups:
            # Sorted: two equal sets may be walked in different orders, and the key must be the same for both.
            facts = repr((self.issuer, self.tenant, self.actors, sorted(self.groups)))
            key = f"{key}\0{sha256(facts.encode()).hexdigest()}"
        # Worked out once, for it is read on every call; a frozen class can set such a field in no other way.
        object.__setattr__(self, "key", key)

    @property
    def facts(self) -> dict[str, str]:
        """What its credential says beside its id, for records; what it does not say is left out."""
        named = {"issuer": self.issuer, "tenant": self.tenant, "actors": " ".join(self.actors)}
        return {name: fact for name, fact in named.items() if fact}

    # Not compared: with its next token the caller is still the same principal.
    subject_token: SubjectToken | None = field(default=None, repr=False, compare=False)
    """What it showed, for authorization servers that exchange it (RFC 8693), and for nobody else; None: no token."""

    def may_know(self, owner: str) -> bool:
        """Whether roles may show it what that principal owns."""
        return self.tenancy is None or self.tenancy.holds(owner)

    def may_know_source(self, source: str) -> bool:
        """Whether the source is there for it at all."""
        return self.tenancy is None or self.tenancy.shows(source)

    @property
    def owners(self) -> Owners | None:
        """Whose records roles may show it; None: everybody's."""
        return None if self.tenancy is None else self.tenancy.holds

    @property
    def share(self) -> str:
        """By what shares of common rooms are counted: tenants, where there are any."""
        return self.id if self.tenancy is None else f"tenant {self.tenancy.name}"  # no id has a blank


# What a tool asks a person in the middle of a call, and the answer it gets (MCP's InputRequiredResult, SEP-2322).


@dataclass(frozen=True, slots=True)
class Question:
    message: str
    """For the person; untrusted text, bounded by the adapter."""
    schema: JsonObject
    """JSON Schema of the answer, an object; empty when yes or no is all that is asked."""
    continuation: str = field(repr=False)
    """Opaque to the hub, handed back with the answer; never shown, never logged."""


class QuestionAsked(Exception):
    """Raised by `Adapter.execute`: the tool waits for a person, and nothing has been done beyond that."""

    def __init__(self, question: Question) -> None:
        super().__init__("a question was asked")
        self.question = question


class Suspended(BaseException):
    """Raised by a durable `InnerCalls`: an inner call of a job waits for a person. The tool lets it through, having
    ended what it runs: the job is run again from its start, and gets the answers that are kept in its log.

    No `Exception`, for what a tool catches of its program's own failures must not catch this.
    """

    def __init__(self, approval_id: str) -> None:
        super().__init__(approval_id)
        self.approval_id = approval_id


class CallingClient(Protocol):
    """The program that makes a call, where it can be asked while the call runs (MCP: elicitation, sampling, roots)."""

    @property
    def capabilities(self) -> JsonObject:
        """What it can be asked, as it declares it (MCP's ClientCapabilities)."""

    async def ask(self, requests: Mapping[str, JsonObject]) -> Mapping[str, JsonValue]:
        """Its answers to requests of MCP, by key. Untrusted, as the requests are. Raises ToolFailure: none."""

    def log(self, level: str, logger: str, data: JsonValue) -> None:
        """Show it a line of a log, where it wants any."""

    def lacks(self, capabilities: JsonObject) -> None:
        """The call failed because it does not declare these."""


class Reply(NamedTuple):
    """A person's answer to a question."""

    answer: JsonObject | None
    """Fits the question's schema; None: declined."""
    continuation: str
    """The question's own."""

    def __repr__(self) -> str:
        # Answers may be passwords, and what prints a call prints this.
        return "Reply(…)"


class BudgetRequest(NamedTuple):
    """What the caller is ready to spend; None leaves it to the tool and the policy."""

    timeout_s: float | None = None
    max_retries: int | None = None
    max_tool_calls: int | None = None
    """Calls under the same request_id."""


class ExecContext(NamedTuple):
    """Who asked for what piece of work. Ids are opaque; empty means unknown."""

    request_id: str = ""
    """The agent's request; the hub makes one when empty. Workspace and call quota go by it."""
    task_id: str = ""
    session_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    permissions: frozenset[str] | None = None
    """May only narrow what the principal's grant allows; None: the grant as it is."""
    budget: BudgetRequest = BudgetRequest()
    # Read-only: all calls without labels share this one object.
    labels: Mapping[str, str] = MappingProxyType({})


INNER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of all answers that one running call gets, canonical JSON."""


class Lineage(NamedTuple):
    """Of a call that a running call makes: never from a message."""

    parent_call_id: str
    root_call_id: str
    """The call that a caller made; the parent itself where that one did."""
    depth: int
    """1 for what a caller's own call makes, 2 for what that makes."""
    tools: frozenset[str]
    """Full names of the only tools that it may call, and that calls which it makes in turn may."""
    calls_left: int
    """How many calls it may make in turn: no more than the call that makes it has left."""
    bytes_left: int = INNER_BYTES_MAX
    """How many bytes of answers those may bring."""
    # By digest too: a tool may call itself with other arguments; with the same ones it would do so without end.
    ancestors: tuple[tuple[str, str], ...] = ()
    """Tool and sha256 (hex) over the arguments of each call above it, the caller's own first."""
    job_id: str = ""
    """The job whose run makes it, through whatever other calls; empty: none."""
    is_kept: bool = False
    """Whether that job's log keeps its answer, and the job waits where a person must approve it."""


class Mode(Enum):
    EXECUTE = "EXECUTE"
    DRY_RUN = "DRY_RUN"
    SUBMIT = "SUBMIT"
    """To be judged now, steps 1 to 5, and to run later as a job."""


ReadArguments = Callable[[], "tuple[JsonObject, ToolError | None]"]
"""Reads arguments, or says why they cannot be read. Runs in any thread."""


class Call(NamedTuple):
    """Asked: nothing about it has been believed yet but the principal."""

    call_id: str
    tool: str
    args: JsonObject
    principal: Principal
    context: ExecContext = ExecContext()
    args_error: ToolError | None = None
    """Why the arguments could not be read; `args` is empty then. Step 2 refuses the call with it."""
    purpose: str = ""
    idempotency_key: str = ""
    mode: Mode = Mode.EXECUTE
    plan_digest: str = ""
    """Set: execute exactly the plan that was shown, or refuse."""
    approval_id: str = ""
    expected_tool_digest: str = ""
    """Of the definition that the caller knows; set: refuse the call where the tool has another one by now."""
    deadline_s: float | None = None
    """Loop clock; None: the caller set none."""
    job_id: str = ""
    """The job that the call is run as; empty for a call that is answered at once."""
    names_artifacts: bool = False
    """Whether the arguments may hold references to artifacts, to be put in before step 2."""
    lineage: Lineage | None = None
    """Set: a running call makes it; None: a caller does."""
    unread: ReadArguments | None = None
    """Set: the arguments are large and still as they came; step 2 reads them beside other calls. `args` is empty."""
    unread_bytes: int = 0
    client: CallingClient | None = None
    """Who can be asked while it runs; None: nobody. Never of a job, whose caller may be gone."""

    @property
    def subject(self) -> str:
        """Id of whom it is for: the user, or else the agent, in whose name the principal makes it; or the principal."""
        own = self.principal.id
        # A message that names the principal itself says no more than the credential does.
        return next((id for id in (self.context.user_id, self.context.agent_id) if id not in ("", own)), own)

    @property
    def waiting_job_id(self) -> str:
        """The job that waits where a person is asked for this call: its own, or the one whose log keeps it."""
        if self.job_id or self.lineage is None or not self.lineage.is_kept:
            return self.job_id
        return self.lineage.job_id


class Preconditions(NamedTuple):
    """What a plan or an approval holds for besides the call itself: it runs there and on that, or not at all."""

    workspace: str = ""
    """Names the folder that the call works in; empty: in none."""
    state: str = ""
    """sha256 (hex) over `entries`; empty: it destroys nothing that it could name."""
    entries: Mapping[str, str] = MappingProxyType({})
    """By path: the state of what the call would destroy, overwrite or move."""


NO_PRECONDITIONS = Preconditions()


class PlannedCall(NamedTuple):
    """Resolved, valid, complete: what would run if policy and budget agree."""

    call: Call
    spec: ToolSpec
    args: JsonObject
    """With defaults filled in."""
    defaults_applied: tuple[str, ...] = ()
    args_json: bytes = b""
    """The canonical JSON of `args`."""
    args_digest: str = ""
    """sha256 (hex) over it."""
    preconditions: Preconditions = NO_PRECONDITIONS
    """Looked up in step 4 for a dry run, a plan or an approval; no other call has any."""


class GrantedCall(NamedTuple):
    """Allowed, with its budget. Constructed in runtime/steps.py only; adapters accept nothing else."""

    planned: PlannedCall
    verdict: Verdict
    deadline_s: float
    """Loop clock: when the execution is over, whatever happens."""
    has_side_effects: bool = True
    """Whether this very call may change something; a tool that can write may be called in a way that only reads."""
    idempotency_key: str = ""
    """The caller's or the derived key; empty when there is none. Shared by all retries."""
    reply: Reply | None = None
    """A person's answer to the question with which an earlier run of this call ended; None: it is the first."""

    @property
    def safe_to_repeat(self) -> bool:
        """Whether running the call twice does what running it once does."""
        return not self.has_side_effects or self.spec.annotations.safe_to_repeat

    @property
    def call(self) -> Call:
        return self.planned.call

    @property
    def spec(self) -> ToolSpec:
        return self.planned.spec

    @property
    def args(self) -> JsonObject:
        return self.planned.args
