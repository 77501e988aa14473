"""A tool as the hub knows it: contract, risk, limits, origin and whether it may be called."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from toolhub_service.domain.json import JsonObject, JsonValue

# Capabilities: what a tool does to the world and what a principal may do (an open set of strings).

READ_WEB = "read:web"
READ_DESKTOP = "read:desktop"
READ_FS = "read:fs"
WRITE_FS = "write:fs"
READ_DB = "read:db"
WRITE_DB = "write:db"
NETWORK = "network"
GPU = "gpu"
WORKFLOW = "workflow"
EXECUTE_COMMAND = "execute:command"
READ_MEMORY = "read:memory"
WRITE_MEMORY = "write:memory"
SEND_MESSAGE = "send:message"
SPAWN_AGENT = "spawn:agent"
DANGER_DESTRUCTIVE = "danger:destructive"

KNOWN_CAPABILITIES = frozenset(
    {
        *(READ_WEB, READ_DESKTOP, READ_FS, WRITE_FS, READ_DB, WRITE_DB, READ_MEMORY, WRITE_MEMORY),
        *(NETWORK, GPU, WORKFLOW, EXECUTE_COMMAND, SEND_MESSAGE, SPAWN_AGENT, DANGER_DESTRUCTIVE),
    }
)

CAPABILITY_ALIASES: dict[str, frozenset[str]] = {
    "read:file": frozenset({READ_FS}),
    "write:file": frozenset({WRITE_FS}),
    "delete:file": frozenset({WRITE_FS, DANGER_DESTRUCTIVE}),
    "network:outbound": frozenset({NETWORK}),
}
"""Older names and their current ones."""


def canonical_capabilities(capabilities: Iterable[str]) -> frozenset[str]:
    """Return the set with older names replaced by current ones."""
    named: set[str] = set()
    for capability in capabilities:
        named |= CAPABILITY_ALIASES.get(capability, frozenset({capability}))
    return frozenset(named)


REGISTERED_SOURCE = "registered"
"""Source of a tool that is being registered and does not name one."""


class IdentityEnum(Enum):
    """Members hash by identity, because each is a singleton."""

    # Enum's own hash is Python code, and members are keys of dictionaries and sets on every call.
    __hash__ = object.__hash__


class ToolKind(IdentityEnum):
    CORE = "core"
    MCP = "mcp"
    LANGCHAIN = "langchain"
    N8N = "n8n"
    COMFYUI = "comfyui"
    SKILL = "skill"


class ToolState(Enum):
    ACTIVE = "ACTIVE"
    QUARANTINED = "QUARANTINED"
    UNAVAILABLE = "UNAVAILABLE"
    DISABLED = "DISABLED"


class Primitive(IdentityEnum):
    """The protocol primitive that a tool represents: MCP separates tools, prompts and resources, the hub governs all as
    tools."""

    TOOL = "tool"
    PROMPT = "prompt"
    """Returns the messages of one prompt."""
    RESOURCE_LIST = "resource-list"
    """Returns a source's resources and templates."""
    RESOURCE_READ = "resource-read"
    """Returns the contents of one resource, by its URI."""
    RESOURCE_SUBSCRIPTION = "resource-subscription"
    """Subscribes to changes of one resource, by its URI."""
    COMPLETION = "completion"
    """Returns possible values for an argument of a prompt or template."""


class IdempotencyMode(Enum):
    """How calls of this tool are deduplicated."""

    KEYED = "KEYED"
    """Only by a key that the caller sends."""
    DERIVED = "DERIVED"
    """The hub derives a key (request, task, tool, arguments) when the caller sends none."""


class ArgumentRole(Enum):
    """What an argument means to the guards, so that policy can check it before the tool runs."""

    PATH_READ = "path_read"
    PATH_WRITE = "path_write"
    URL = "url"
    METHOD = "method"
    COMMAND = "command"
    """argv as an array, or one string to be split without a shell."""
    WORKING_DIRECTORY = "working_directory"
    SQL = "sql"
    """One statement for the database that the argument `connection` names."""


class GuardedArgument(msgspec.Struct, frozen=True):
    """One argument that a guard checks in step 4 and again at I/O time."""

    name: str
    """Top-level property of the arguments; absent or null values are not checked."""
    role: ArgumentRole


class DatabaseTerms(msgspec.Struct, frozen=True):
    """What statements on one configured connection may do. The database's address is known only below this layer."""

    name: str
    dialect: Literal["postgres", "sqlite"]
    may_write: bool = False
    tables: tuple[str, ...] = ()
    """Globs over `schema.table` (PostgreSQL) or `table` (SQLite); empty: all but the database's own catalog."""
    functions: tuple[str, ...] = ()
    """Allowed besides the built-in list: `name`, or `schema.name` in PostgreSQL."""
    schema: str = "public"
    """PostgreSQL only: schema in which names without one are looked up."""


class Annotations(msgspec.Struct, frozen=True):
    """Behaviour hints (MCP's names). A remote source may raise the risk they state, never lower it."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    supports_progress: bool = False
    supports_streaming: bool = False

    @property
    def safe_to_repeat(self) -> bool:
        """Whether running the call twice has the effect of running it once."""
        return self.read_only or self.idempotent


class CostHints(msgspec.Struct, frozen=True):
    latency_ms_p50: float = 0.0
    """Milliseconds; 0 when unknown."""
    latency_ms_p95: float = 0.0
    is_async: bool = False


class ToolLimits(msgspec.Struct, frozen=True):
    """Defaults of the tool; the caller's budget and deadline narrow them, policy limits bound them."""

    timeout_s: float = 30.0
    max_retries: int = 0
    """Further attempts after the first; used only where a repeat is safe."""
    max_result_bytes: int = 1024 * 1024
    """Size of an inline result, in bytes of canonical JSON."""
    mcp_text_max_bytes: int = 0
    """Most text of a result for an MCP client, which gets the rest as a resource; 0: the endpoint's own limit."""
    max_concurrency: int = 0
    """Calls in flight for the tool's upstream; 0: the hub's default."""
    job_timeout_s: float = 0.0
    """From submission to end, where the tool runs as a job, whatever its caller allows; 0: the hub's default."""
    call_max_s: float = 0.0
    """The operator's limit for a call of its source, also within a job, whatever its caller allows; 0: no limit. Does
    not apply to work that continues elsewhere, which `job_timeout_s` limits."""
    call_max_in_job_s: float = 0.0
    """The same within a job; 0: `call_max_s`."""
    idle_timeout_s: float = 0.0
    """How long a call may neither answer nor report progress; 0: no limit."""

    @property
    def usual_s(self) -> float:
        """How long a call may take that reports no progress."""
        return min(self.timeout_s, self.idle_timeout_s or self.timeout_s)

    def most_s(self, *, in_job: bool) -> float:
        """The operator's limit for a call; 0: no limit."""
        return (in_job and self.call_max_in_job_s) or self.call_max_s


class Example(msgspec.Struct, frozen=True):
    """A working call, for models and for the tour."""

    title: str
    args: JsonObject


class SkillListing(Struct, frozen=True, gc=False):
    """The contents of a skill, for clients that list skills (SEP-2640). Untrusted."""

    frontmatter: JsonObject
    """Fields of its SKILL.md, as written."""
    files: tuple[tuple[str, str, int], ...]
    """(path from the skill's folder, sha256 in hex, bytes) of each readable file."""


# eq=False: comparing two schemas field by field would traverse both, and the digest is sufficient.
@dataclass(frozen=True, slots=True, eq=False)
class ToolSpec:
    """One tool. Equality is by digest: two specs with the same definition are the same tool."""

    name: str
    """`namespace/path.verb`, unique in the hub."""
    kind: ToolKind
    description: str
    input_schema: JsonObject
    output_schema: JsonObject
    version: str = "1.0.0"
    """Semantic version."""
    tags: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset()
    annotations: Annotations = field(default_factory=Annotations)
    cost: CostHints = field(default_factory=CostHints)
    limits: ToolLimits = field(default_factory=ToolLimits)
    idempotency: IdempotencyMode = IdempotencyMode.KEYED
    guarded: tuple[GuardedArgument, ...] = ()
    databases: tuple[DatabaseTerms, ...] = ()
    """Terms by which arguments of role SQL are checked; configuration, not part of the definition."""
    skill: SkillListing | None = None
    """Set for a tool that reads a skill; `resource_id` has its digest."""
    source: str = "core"
    """Its source: `core`, `custom`, or a configured source's name."""
    endpoint: str = ""
    resource_id: str = ""
    upstream: str = ""
    """Key of the shared breaker and concurrency limit; empty: its own name."""
    primitive: Primitive = Primitive.TOOL
    """If not TOOL, an MCP client sees a prompt or resources instead of the tool."""
    state: ToolState = ToolState.ACTIVE
    state_reason: str = ""
    """Why it is not ACTIVE; empty when it is."""
    examples: tuple[Example, ...] = ()
    presentation: JsonObject | None = None
    """What the source says of the tool to clients, not to models (MCP's names): `title`, `icons`, `_meta`, and of
    `annotations` those on which the operator says nothing. Untrusted; not part of the definition."""
    unenforced: tuple[str, ...] = ()
    """What a source describes and the hub leaves out or does not enforce, such as a pattern that is not linear; one
    clause each. Empty: calls are checked by all of both schemas."""
    replays: bool = False
    """Whether its only effects are calls made by `InnerCalls.durable`: a job of it may be run again, whatever it has
    begun."""
    digest: str = ""
    """sha256 (hex) over the canonical definition; computed when left empty."""
    has_side_effects: bool = field(init=False)
    """Whether a call may change something: its audit record must be durable before it runs."""
    upstream_key: str = field(init=False)
    """Key of its breaker and its concurrency limit."""

    def __post_init__(self) -> None:
        # Fields instead of properties: both are read several times on every call.
        object.__setattr__(self, "has_side_effects", not self.annotations.read_only)
        object.__setattr__(self, "upstream_key", self.upstream or self.name)
        if not self.digest:
            object.__setattr__(self, "digest", definition_digest(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolSpec) and self.name == other.name and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.name, self.digest))


def definition_digest(spec: ToolSpec) -> str:
    """Return sha256 (hex) over what a caller relies on: name, contract, capabilities, annotations; not state or
    source."""
    definition: dict[str, JsonValue] = {
        "name": spec.name,
        "version": spec.version,
        "kind": spec.kind.value,
        "description": spec.description,
        "inputSchema": spec.input_schema,
        "outputSchema": spec.output_schema,
        # A set has no order of its own, and the digest must be equal in every process.
        "capabilities": sorted(spec.capabilities),
        "annotations": [
            spec.annotations.read_only,
            spec.annotations.destructive,
            spec.annotations.idempotent,
            spec.annotations.open_world,
        ],
        "endpoint": spec.endpoint,
        "resourceId": spec.resource_id,
        "guarded": [[argument.name, argument.role.value] for argument in spec.guarded],
    }
    # Any other form would change every digest, and void the plans and approvals that contain them.
    canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


# Uses of tools: purposes of successful calls, from which search learns. Per tenant, redacted.


class ToolUse(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="v", tag=1):
    tenant: str
    """The principal whose searches it helps."""
    tool: str
    """Full name."""
    agent: str
    """The agent that used it, so that none can outweigh the others; empty: the principal itself."""
    purpose: str
    """Redacted, at most 300 characters."""
    at_unix_ms: int


class UsageStore(Protocol):
    """Uses in the order in which they were added, in a store that others may share. Losing the newest few does no harm.

    Each raises ToolFailure TOOL_UNAVAILABLE when the store cannot be reached.
    """

    async def add(self, uses: Sequence[ToolUse]) -> None:
        """Append a use; for one tenant and tool only the newest `keep` (given to the constructor) stay."""

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        """Return uses added after the cursor (0: from the start), oldest first, at most `limit`, and the next
        cursor."""

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Delete uses older than that, at most `limit`, and return how many."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...
