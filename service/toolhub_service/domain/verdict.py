"""What policy decided, by which rule, and what would change the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Protocol

import msgspec

from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.json import JsonValue

# What a verdict allows in detail: the values that guards use and tools enforce at I/O time.


class EgressRule(msgspec.Struct, frozen=True):
    """Hosts that may be dialled. A request passes when one rule matches it whole."""

    hosts: tuple[str, ...]
    """Host names, `*.example.com` (subdomains only), literal addresses, `*` for any; ASCII (IDNA) and lower case."""
    schemes: frozenset[str] = frozenset({"https", "http"})
    ports: frozenset[int] = frozenset()
    """Empty: the scheme's default port only."""
    # Reading only: methods that may change something must be named.
    methods: frozenset[str] = frozenset({"GET", "HEAD"})
    cidrs: tuple[str, ...] = ()
    """Networks opened although they are not public, such as `127.0.0.0/8`; empty: public addresses only."""
    blocked_cidrs: tuple[str, ...] = ()
    """Networks that no rule opens, although they may be public."""
    paths: tuple[str, ...] = ()
    """Prefixes in normal form, such as `/v1`, that end at a slash or the end of the path; empty: any path."""
    retry_with_key: bool = False
    """Whether the host honours the header Idempotency-Key: a request that carries it may then be sent again."""


class FlagRule(msgspec.Struct, frozen=True):
    """One flag that a binary may be given."""

    flag: str
    """As typed: `-n` or `--max-count`."""
    value: str | None = None
    """RE2 pattern that the whole value must match; None: the flag takes no value."""


class CommandRule(msgspec.Struct, frozen=True):
    """One binary that may be run, and the grammar of its arguments."""

    name: str
    """What a caller writes as argv[0]; never a path."""
    path: str
    """Absolute path of the binary: never looked up on PATH."""
    flags: tuple[FlagRule, ...] = ()
    positionals: str | None = None
    """RE2 pattern that each positional must match whole; None: no positionals. A leading `-` is always refused."""
    positionals_are_paths: bool = False
    """Whether positionals are workspace paths, checked by the path guard."""
    positionals_max: int = 16
    subcommands: tuple[str, ...] = ()
    """When not empty, argv[1] must be one of these."""
    # Without it a positional could be read as a flag; a few programs, such as echo, print it instead.
    end_of_options: bool = True
    """Whether `--` is inserted before the positionals."""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Added to the empty environment."""


class DeniedCommand(msgspec.Struct, frozen=True):
    """Commands that no grammar can allow, besides the built-in ones."""

    id: str
    pattern: str
    """RE2, searched in the words of the command, and of each command that it starts, joined by single spaces."""


Level = Literal["rlimits", "landlock", "bubblewrap"]
LEVELS: tuple[Level, ...] = ("rlimits", "landlock", "bubblewrap")
"""Levels of isolation for a program, from the weakest to the strongest (the package `sandbox`)."""


class Sandbox(msgspec.Struct, frozen=True):
    """Limits on what a tool may use of the machine."""

    max_read_bytes: int = 5 * 1024 * 1024
    max_write_bytes: int = 100 * 1024 * 1024
    max_http_bytes: int = 5 * 1024 * 1024
    max_download_bytes: int = 100 * 1024 * 1024
    max_search_files: int = 2_000
    may_overwrite: bool = True
    command_cpu_s: int = 30
    command_memory_bytes: int = 1024 * 1024 * 1024
    command_file_bytes: int = 100 * 1024 * 1024
    command_processes: int = 64
    require_bubblewrap: bool = False
    """Refuse to run commands where bubblewrap is missing instead of running them with rlimits alone."""
    minimum: Level = "rlimits"
    """The level for every program that a tool starts with code or arguments of others."""
    minimum_for: Mapping[str, Level] = msgspec.field(default_factory=dict)
    """Further levels by tool name, `*` for any characters; the strongest of those that match applies."""

    def minimum_of(self, tool: str) -> Level:
        """Return the level for a tool by its full name."""
        wanted = [self.minimum, *(level for name, level in self.minimum_for.items() if fnmatchcase(tool, name))]
        if self.require_bubblewrap and tool == "core/exec.run":
            # The older key is about commands only, and means the strongest level for them.
            wanted.append("bubblewrap")
        return max(wanted, key=LEVELS.index)


class Constraints(msgspec.Struct, frozen=True):
    """Everything in a verdict about how a granted call may access files, hosts and programs."""

    egress: tuple[EgressRule, ...] = ()
    commands: tuple[CommandRule, ...] = ()
    denied_commands: tuple[DeniedCommand, ...] = ()
    sandbox: Sandbox = msgspec.field(default_factory=Sandbox)


class Effect(Enum):
    ALLOW = "ALLOW"
    DENY = "DENY"
    REQUIRE_APPROVAL = "REQUIRE_APPROVAL"
    REQUIRE_PLAN = "REQUIRE_PLAN"


class Limit(msgspec.Struct, frozen=True):
    """One limit that applies to a call; several may."""

    id: str
    """Names the bucket: limits with equal ids share one counter."""
    rate_per_s: float | None = None
    burst: int = 1
    concurrency: int | None = None
    quota: int | None = None
    """Calls per `quota_window_s`."""
    quota_window_s: float = 86_400.0


class Verdict(msgspec.Struct, frozen=True):
    """One decision. The same snapshot and the same call always give the same verdict."""

    effect: Effect
    policy_revision: str
    """Digest of the policy that decided."""
    rule_id: str
    """The rule, grant or guard that decided, such as `grant:local` or `egress`."""
    reason: str
    remedy: str = ""
    """What the caller can do; empty when nothing is needed."""
    operator_remedy: str = ""
    """Lines of policy.yaml that would allow the call: for operators and the audit log, never for another caller."""
    kind: ErrorKind = ErrorKind.POLICY_DENIED
    """Error kind of a refusal."""
    details: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    constraints: Constraints = msgspec.field(default_factory=Constraints)
    limits: tuple[Limit, ...] = ()

    @property
    def allows(self) -> bool:
        return self.effect is Effect.ALLOW

    def refusal_details(self) -> dict[str, JsonValue]:
        """Return the details of the error that refuses a call by this verdict."""
        details: dict[str, JsonValue] = {
            **self.details,
            "rule_id": self.rule_id,
            "policy_revision": self.policy_revision,
        }
        if self.remedy:
            details["remedy"] = self.remedy
        return details


# The port of counters that all hubs share: rate and quota, by limit id.


class ExhaustedLimit(Enum):
    """Which part of a limit is used up."""

    RATE = "rate"
    QUOTA = "quota"


class Refused(NamedTuple):
    """Nothing was taken."""

    limit: Limit
    scarce: ExhaustedLimit
    wait_s: float
    """Seconds until the same call may pass, by the present counts."""


class Taken(NamedTuple):
    """Argument for `give_back`."""

    limits: tuple[Limit, ...] = ()
    marks: tuple[bytes, ...] = ()
    """The store's own values, one per limit."""


class SharedCounts(Protocol):
    """Rate and quota of limits. Concurrency is not counted here: slots belong to each process.

    Both methods raise ToolFailure TOOL_UNAVAILABLE when the store cannot be reached. A call may then have been counted
    all the same, and one whose answer was lost may be counted twice: never too few.
    """

    async def take(self, limits: Sequence[Limit], *, spend: bool = True) -> Taken | Refused:
        """Count one call of each limit, or of none. Without `spend`, only return whether it would pass."""

    async def give_back(self, taken: Taken) -> None:
        """Return what a call that did not run has taken. A window that has closed since is unchanged."""
