"""A call on its way through the steps. The types express the order: requested, then planned, then granted.

Values made for every call are NamedTuples: as immutable as a frozen dataclass, and created in half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from toolhub_service.domain.errors.failure import ToolError
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.statement import Statement
from toolhub_service.domain.tool import IdentityEnum, ToolSpec
from toolhub_service.domain.verdict import Verdict

# Who is calling: always from a verified credential, never from the message.


class Role(IdentityEnum):
    """Which group of RPCs a principal may use; grants and rules decide which tools it may call."""

    AGENT = "agent"
    """ToolService, JobService, ArtifactService."""
    OPERATOR = "operator"
    """RegistryService, besides those of an agent."""
    APPROVER = "approver"
    """ApprovalService."""
    AUDITOR = "auditor"
    """AuditService."""


Owners = Callable[[str], bool]
"""Whether the records of the principal with that id are included."""


class TenantBounds(NamedTuple):
    """Limits for all principals of a tenant together; None: no limit besides each principal's own."""

    max_artifact_bytes: int | None = None
    max_artifacts: int | None = None
    max_open_jobs: int | None = None
    max_open_approvals: int | None = None
    max_workspace_bytes: int | None = None
    max_memory_bytes: int | None = None


class Tenancy(Protocol):
    """What a principal of one tenant may see of others, under the policy that describes it."""

    @property
    def name(self) -> str:
        """The tenant's name; `-` for a principal without a tenant, where there are tenants."""

    @property
    def bounds(self) -> TenantBounds:
        """The tenant's limits."""

    def holds(self, principal_id: str) -> bool:
        """Return whether this principal belongs to the same tenant."""

    def shows(self, source: str) -> bool:
        """Return whether the source is the tenant's, or everybody's."""

    def owns(self, source: str) -> bool:
        """Return whether the source is this tenant's alone: its operators may change it."""


class TenantDirectory(Protocol):
    """The tenants of principals, under the policy in force."""

    def tenant_of(self, principal_id: str) -> str:
        """Return the tenant's name; `-` for a principal of none, `*` for one of the whole hub. Empty for an empty id,
        and where there are no tenants."""

    def tenancy_of(self, principal_id: str) -> Tenancy | None:
        """Return what the principal may see of others, and its tenant's limits; None: everything, and no limits."""


class SubjectToken:
    """A verified access token. Never shown, never stored in a record, never sent to a source."""

    # Neither a dataclass nor a Struct, because printing or encoding those would reveal the text.
    __slots__ = ("digest", "text")

    def __init__(self, text: str, digest: str) -> None:
        """`digest` is the sha256 (hex) of the text."""
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
    """Ids of those who act for it, by its token (RFC 8693): the current actor first."""
    permissions: frozenset[str] | None = None
    """Globs over capabilities to which its token narrows the grant; None: the whole grant."""
    tenant: str = ""
    """The customer that its credential names; empty: none."""
    groups: frozenset[str] = frozenset()
    """Groups as its issuer names them; meaningless without `issuer`."""
    # Not compared: it is the policy's view, and a reload creates another object for the same principal.
    tenancy: Tenancy | None = field(default=None, repr=False, compare=False)
    """Limits what it sees of others; None: only its roles do, because there are no tenants or it belongs to the whole
    hub."""
    key: str = field(init=False, compare=False, repr=False)
    """Equal for principals that a policy cannot tell apart; only the id where a credential says no more than that."""

    def __post_init__(self) -> None:
        key = self.id
        if self.issuer or self.actors or self.tenant or self.groups:
            # Sorted, because equal sets may have different orders, and their keys must be equal.
            facts = repr((self.issuer, self.tenant, self.actors, sorted(self.groups)))
            key = f"{key}\0{sha256(facts.encode()).hexdigest()}"
        # Computed once, because every call reads it; a frozen class can set such a field in no other way.
        object.__setattr__(self, "key", key)

    @property
    def facts(self) -> dict[str, str]:
        """What its credential says besides its id, for records; facts that it does not state are left out."""
        named = {"issuer": self.issuer, "tenant": self.tenant, "actors": " ".join(self.actors)}
        return {name: fact for name, fact in named.items() if fact}

    # Not compared: with its next token the caller is still the same principal.
    subject_token: SubjectToken | None = field(default=None, repr=False, compare=False)
    """Its verified token, for authorization servers that exchange it (RFC 8693) only; None: no token."""

    def may_know(self, owner: str) -> bool:
        """Return whether a role may show it what that principal owns."""
        return self.tenancy is None or self.tenancy.holds(owner)

    def may_know_source(self, source: str) -> bool:
        """Return whether it may see the source at all."""
        return self.tenancy is None or self.tenancy.shows(source)

    @property
    def owners(self) -> Owners | None:
        """Whose records a role may show it; None: everybody's."""
        return None if self.tenancy is None else self.tenancy.holds

    @property
    def share(self) -> str:
        """The key for shared limits: its tenant, where there are tenants, else its id."""
        return self.id if self.tenancy is None else f"tenant {self.tenancy.name}"  # no id contains a space


# What a tool asks a person in the middle of a call, and the answer it gets (MCP's InputRequiredResult, SEP-2322).


@dataclass(frozen=True, slots=True)
class Question:
    message: str
    """Text for the person; untrusted, bounded by the adapter."""
    schema: JsonObject
    """JSON Schema of the answer, an object; empty when only yes or no is asked."""
    continuation: str = field(repr=False)
    """Opaque to the hub, returned with the answer; never shown, never logged."""


class QuestionAsked(Exception):
    """Raised by `Adapter.execute`: the tool waits for a person, and nothing more has been done."""

    def __init__(self, question: Question) -> None:
        super().__init__("a question was asked")
        self.question = question


class Suspended(BaseException):
    """Raised by a durable `InnerCalls`: an inner call of a job waits for a person. The tool must stop what it runs and
    let this pass: the job is run again from its start, and gets the answers stored in its log.

    Not an `Exception`, so that a tool that catches failures of its program does not catch this.
    """

    def __init__(self, approval_id: str) -> None:
        super().__init__(approval_id)
        self.approval_id = approval_id


class CallingClient(Protocol):
    """The program that makes a call, if it can be asked while the call runs (MCP: elicitation, sampling, roots)."""

    @property
    def capabilities(self) -> JsonObject:
        """What it can be asked, as it declares (MCP's ClientCapabilities)."""

    async def ask(self, requests: Mapping[str, JsonObject]) -> Mapping[str, JsonValue]:
        """Return its answers to requests of MCP, by key. Both are untrusted. Raises ToolFailure without an answer."""

    def log(self, level: str, logger: str, data: JsonValue) -> None:
        """Send it a line of a log, if it wants any."""

    def lacks(self, capabilities: JsonObject) -> None:
        """Called when the call failed because the client does not declare these capabilities."""


class Reply(NamedTuple):
    """A person's answer to a question."""

    answer: JsonObject | None
    """Valid by the question's schema; None: declined."""
    continuation: str
    """The question's continuation."""

    def __repr__(self) -> str:
        # Answers may be passwords, and printing a call prints this.
        return "Reply(…)"


class BudgetRequest(NamedTuple):
    """What the caller is willing to spend; None leaves it to the tool and the policy."""

    timeout_s: float | None = None
    max_retries: int | None = None
    max_tool_calls: int | None = None
    """Most calls under the same request_id."""


class ExecContext(NamedTuple):
    """Who requested what work. Ids are opaque; empty means unknown."""

    request_id: str = ""
    """The agent's request; the hub generates one when empty. Workspace and call quota depend on it."""
    task_id: str = ""
    session_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    permissions: frozenset[str] | None = None
    """May only narrow what the principal's grant allows; None: the whole grant."""
    budget: BudgetRequest = BudgetRequest()
    # Read-only: all calls without labels share this one object.
    labels: Mapping[str, str] = MappingProxyType({})


INNER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit for all answers that one running call gets, as canonical JSON."""


class Lineage(NamedTuple):
    """Origin of a call that a running call makes; never taken from a message."""

    parent_call_id: str
    root_call_id: str
    """The call that a caller made; it may be the parent itself."""
    depth: int
    """1 for what a caller's own call makes, 2 for what that makes."""
    tools: frozenset[str]
    """Full names of the only tools that it, and the calls that it makes, may call."""
    calls_left: int
    """How many calls it may make: no more than the calling one has left."""
    bytes_left: int = INNER_BYTES_MAX
    """How many bytes the answers of those may have."""
    # By digest too: a tool may call itself with other arguments; with the same ones it would never end.
    ancestors: tuple[tuple[str, str], ...] = ()
    """Tool and sha256 (hex) over the arguments of each call above it, the caller's own first."""
    job_id: str = ""
    """The job whose run makes it, directly or through other calls; empty: none."""
    is_kept: bool = False
    """Whether that job's log stores its answer, and the job waits when a person must approve it."""


class Mode(Enum):
    EXECUTE = "EXECUTE"
    DRY_RUN = "DRY_RUN"
    SUBMIT = "SUBMIT"
    """Steps 1 to 5 now, and run later as a job."""


ReadArguments = Callable[[], "tuple[JsonObject, ToolError | None]"]
"""Reads the arguments, or returns why they cannot be read. Runs in any thread."""


class Call(NamedTuple):
    """A requested call: nothing but the principal has been verified yet."""

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
    """Digest of the definition that the caller knows; if set, refuse the call when the tool has another one by now."""
    deadline_s: float | None = None
    """Loop clock; None: the caller set none."""
    job_id: str = ""
    """The job that the call is run as; empty for a call that is answered at once."""
    args_form: str = ""
    """The form of export that a model wrote the arguments for, such as `ANTHROPIC`, until step 2 has turned them back;
    empty: they are in the tool's own words."""
    names_artifacts: bool = False
    """Whether the arguments may hold references to artifacts, to be put in before step 2."""
    lineage: Lineage | None = None
    """Set when a running call makes it; None when a caller does."""
    unread: ReadArguments | None = None
    """Set when the arguments are large and still unread; step 2 reads them beside other calls. `args` is empty."""
    unread_bytes: int = 0
    client: CallingClient | None = None
    """The client that can be asked while it runs; None: none. Never for a job, whose caller may be gone."""

    @property
    def subject(self) -> str:
        """Id of the one for whom it is made: the user, else the agent that the principal names; else the principal."""
        own = self.principal.id
        # A message that names the principal itself adds nothing to the credential.
        return next((id for id in (self.context.user_id, self.context.agent_id) if id not in ("", own)), own)

    @property
    def waiting_job_id(self) -> str:
        """The job that waits for a decision about this call: its own, or the one whose log stores it."""
        if self.job_id or self.lineage is None or not self.lineage.is_kept:
            return self.job_id
        return self.lineage.job_id


class Preconditions(NamedTuple):
    """What a plan or an approval is valid for besides the call itself: a workspace and its state."""

    workspace: str = ""
    """Name of the folder that the call works in; empty: none."""
    state: str = ""
    """sha256 (hex) over `entries`; empty: it destroys nothing that can be named."""
    entries: Mapping[str, str] = MappingProxyType({})
    """By path: the state of what the call would destroy, overwrite or move."""


NO_PRECONDITIONS = Preconditions()


class PlannedCall(NamedTuple):
    """Resolved, valid, complete: what would run if policy and budget allow it."""

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
    """Determined in step 4 for a dry run, a plan or an approval; other calls have none."""
    statement: Statement | None = None
    """The SQL of the call as its database reads it, when the call is decided again in step 6; None: as parsed."""


class GrantedCall(NamedTuple):
    """Allowed, with its budget. Created in runtime/steps.py only; adapters accept nothing else."""

    planned: PlannedCall
    verdict: Verdict
    deadline_s: float
    """Loop clock: when the execution must end."""
    has_side_effects: bool = True
    """Whether this very call may change something; a call of a tool that can write may be one that only reads."""
    idempotency_key: str = ""
    """The caller's or the derived key; empty when there is none. Shared by all retries."""
    reply: Reply | None = None
    """A person's answer to the question of an earlier run of this call; None: there was none."""

    @property
    def safe_to_repeat(self) -> bool:
        """Return whether running the call twice has the effect of running it once."""
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
