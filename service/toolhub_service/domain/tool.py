"""A tool as the hub knows it: contract, risk, limits, where it came from and whether it may be called."""

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
"""Older names and what they mean today."""


def canonical_capabilities(capabilities: Iterable[str]) -> frozenset[str]:
    """The set with older names replaced by today's."""
    named: set[str] = set()
    for capability in capabilities:
        named |= CAPABILITY_ALIASES.get(capability, frozenset({capability}))
    return frozenset(named)


REGISTERED_SOURCE = "registered"
"""The source of a tool that is being registered and does not name one."""


class IdentityEnum(Enum):
    """Members hash by identity, for each is a singleton."""

    # Enum's own hash is Python code, and these are keys of dictionaries and sets on every call.
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
    """What of a protocol's a tool stands for: MCP parts tools, prompts and resources, the hub governs all as tools."""

    TOOL = "tool"
    PROMPT = "prompt"
    """Gives the messages of one prompt."""
    RESOURCE_LIST = "resource-list"
    """Gives a source's resources and templates."""
    RESOURCE_READ = "resource-read"
    """Gives the contents of one resource, by its URI."""
    RESOURCE_SUBSCRIPTION = "resource-subscription"
    """Has the source tell of changes of one resource, by its URI."""
    COMPLETION = "completion"
    """Gives what an argument of a prompt or template may be."""


class IdempotencyMode(Enum):
    """How calls of this tool are deduplicated."""

    KEYED = "KEYED"
    """Only by a key that the caller sends."""
    DERIVED = "DERIVED"
    """The hub derives a key (request, task, tool, arguments) when the caller sends none."""


class ArgumentRole(Enum):
    """What an argument means to the guards, so that policy can judge it before the tool runs."""

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
    """One argument that a guard judges in step 4 and again at I/O time."""

    name: str
    """Top-level property of the arguments; absent or null values are not judged."""
    role: ArgumentRole


class DatabaseTerms(msgspec.Struct, frozen=True):
    """What statements on one configured connection may do. Where the database is, nobody above it knows."""

    name: str
    dialect: Literal["postgres", "sqlite"]
    may_write: bool = False
    tables: tuple[str, ...] = ()
    """Globs over `schema.table` (PostgreSQL) or `table` (SQLite); empty: all but the database's own catalog."""
    functions: tuple[str, ...] = ()
    """Allowed besides the built-in list: `name`, or `schema.name` in PostgreSQL."""
    schema: str = "public"
    """Of PostgreSQL: where names without a schema are looked up."""


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
        """Whether running the call twice does what running it once does."""
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
    """Inline result, canonical JSON bytes."""
    max_concurrency: int = 0
    """Calls in flight for the tool's upstream; 0: the hub's default."""
    job_timeout_s: float = 0.0
    """From submission to end, where the tool runs as a job, whatever its caller allows; 0: the hub's default."""
    call_max_s: float = 0.0
    """What the operator allows a call of its source, also within a job, whatever its caller allows; 0: no such bound.
    Not of work that runs on elsewhere, which `job_timeout_s` bounds."""


class Example(msgspec.Struct, frozen=True):
    """A call that works, for models and for the tour."""

    title: str
    args: JsonObject


class SkillListing(Struct, frozen=True, gc=False):
    """What a skill is made of, for who lists skills (SEP-2640). Untrusted."""

    frontmatter: JsonObject
    """Of its SKILL.md, every field as it is written."""
    files: tuple[tuple[str, str, int], ...]
    """(path from the skill's folder, sha256 in hex, bytes) of each that can be read."""


# eq=False: to compare two schemas field by field would walk both of them, and the digest says it all.
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
    """What its arguments of role SQL are judged by; configuration, not part of the definition."""
    skill: SkillListing | None = None
    """Of a tool that reads a skill; `resource_id` has its digest."""
    source: str = "core"
    """Which source it came from: `core`, `custom`, or a configured source's name."""
    endpoint: str = ""
    resource_id: str = ""
    upstream: str = ""
    """Key of the breaker and the concurrency limit it shares; empty: its own name."""
    primitive: Primitive = Primitive.TOOL
    """Where it is another than TOOL, an MCP client is shown a prompt or resources in its place."""
    state: ToolState = ToolState.ACTIVE
    state_reason: str = ""
    """Why it is not ACTIVE; empty when it is."""
    examples: tuple[Example, ...] = ()
    replays: bool = False
    """Whether its only effects are calls that it makes by `InnerCalls.durable`: a job of it may be run again, whatever
    it has begun."""
    digest: str = ""
    """sha256 (hex) over the canonical definition; computed when left empty."""
    has_side_effects: bool = field(init=False)
    """Whether a call may change something: its audit record must be durable before it runs."""
    upstream_key: str = field(init=False)
    """Of its breaker and its concurrency limit."""

    def __post_init__(self) -> None:
        # Fields and not properties: both are read several times on every call.
        object.__setattr__(self, "has_side_effects", not self.annotations.read_only)
        object.__setattr__(self, "upstream_key", self.upstream or self.name)
        if not self.digest:
            object.__setattr__(self, "digest", definition_digest(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolSpec) and self.name == other.name and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.name, self.digest))


def definition_digest(spec: ToolSpec) -> str:
    """sha256 (hex) over what a caller relies on: name, contract, capabilities, annotations; not state or source."""
    definition: dict[str, JsonValue] = {
        "name": spec.name,
        "version": spec.version,
        "kind": spec.kind.value,
        "description": spec.description,
        "inputSchema": spec.input_schema,
        "outputSchema": spec.output_schema,
        # A set has no order of its own, and the digest must be the same in every process.
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
    # To write it in another way would change every digest, and void the plans and approvals that name them.
    canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


# What tools were used for: purposes of calls that succeeded, from which search learns. Per tenant, redacted.


class ToolUse(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="v", tag=1):
    tenant: str
    """Whose searches it helps: the principal."""
    tool: str
    """Full name."""
    agent: str
    """Who used it, so that none can outweigh the others; empty: the principal itself."""
    purpose: str
    """Redacted, at most 300 characters."""
    at_unix_ms: int


class UsageStore(Protocol):
    """Uses in the order they were added, whoever else shares the store. Losing the newest few is no harm.

    Each raises ToolFailure TOOL_UNAVAILABLE when it cannot be reached.
    """

    async def add(self, uses: Sequence[ToolUse]) -> None:
        """Append; of one tenant and tool only the newest `keep` (given to the constructor) stay."""

    async def after(self, cursor: int, limit: int) -> tuple[Sequence[ToolUse], int]:
        """Uses added after the cursor (0: from the start), oldest first, at most `limit`, and the next cursor."""

    async def forget(self, before_unix_ms: int, limit: int) -> int:
        """Remove uses older than that, at most `limit`; how many were removed."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...
