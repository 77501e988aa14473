"""policy.yaml as types: every key, its unit, its range and its default.

The JSON Schema printed by `document_schema()` is made from these very types, so that an editor, the parser and
docs/policy.md cannot disagree. Unknown keys are refused: a misspelt `deny` must not be a silent allow.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolhub_service.domain.tool import SEND_MESSAGE
from toolhub_service.domain.verdict import Level
from toolhub_service.policy.tenants import TenantRule

Glob = Annotated[str, Meta(min_length=1, max_length=256)]
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
RE2 = Annotated[str, Meta(max_length=1024)]

ANYONE = ("*",)
_WHOM = "Globs over principal ids, `group:ISSUER/GROUP`, `issuer:NAME`, `actor:ID` or `spiffe://DOMAIN/PATH/*`."


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of policy.yaml."""


class Grant(Section, frozen=True, kw_only=True):
    """Which capabilities these principals hold. Grants add up; nothing is held without one."""

    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description=_WHOM)]
    capabilities: Annotated[
        tuple[Glob, ...],
        Meta(
            description="Globs over capabilities, such as `read:*`. A wildcard never covers `danger:destructive`: "
            "name it."
        ),
    ] = ()


class Roles(Section, frozen=True, kw_only=True):
    """Which groups of RPCs these principals may use. Without an entry, whom a grant names is an agent."""

    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description=_WHOM)]
    roles: Annotated[
        tuple[Literal["agent", "operator", "approver", "auditor"], ...],
        Meta(description="Roles of these principals. A principal that only a grant names has the role `agent`."),
    ]


class Approval(Section, frozen=True, kw_only=True):
    """Terms of an approval."""

    expires_s: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=2_592_000,
                description="Seconds until the request expires, which counts as a denial; unset: the hub's default.",
            ),
        ]
        | None
    ) = None
    approvers: Annotated[
        tuple[Glob, ...], Meta(min_length=1, description="Who may decide (role approver needed); as `principals`.")
    ] = ANYONE


class Rule(Section, frozen=True, kw_only=True):
    """DENY overrides REQUIRE_APPROVAL, that REQUIRE_PLAN, that ALLOW; among equals the first in the file decides."""

    id: Annotated[Id, Meta(description="Unique; named in verdicts and in the audit log.")]
    effect: Annotated[
        Literal["ALLOW", "DENY", "REQUIRE_APPROVAL", "REQUIRE_PLAN"],
        Meta(
            description="Effect on a matching call. ALLOW grants no capability; it lets a destructive tool run "
            "without a dry run."
        ),
    ]
    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description=_WHOM)] = ANYONE
    tools: Annotated[tuple[Glob, ...], Meta(min_length=1, description="Globs over tool names.")] = ANYONE
    capabilities: Annotated[
        tuple[Glob, ...], Meta(description="Only tools that have one of these capabilities (globs); empty: any tool.")
    ] = ()
    when: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="CEL over args, tool, principal, subject, actor, delegation, context and sql; empty: always. "
            "An error denies the call.",
        ),
    ] = ""
    reason: Annotated[str, Meta(max_length=500, description="Sent to the caller: why.")] = ""
    remedy: Annotated[str, Meta(max_length=500, description="Sent to the caller: what to do instead.")] = ""
    approval: Annotated[Approval, Meta(description="Terms, for REQUIRE_APPROVAL only.")] = Approval()


class LimitRule(Section, frozen=True, kw_only=True):
    """Bounds on how often and how many at once."""

    id: Annotated[Id, Meta(description="Unique; names the counter.")]
    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description=_WHOM)] = ANYONE
    tools: Annotated[tuple[Glob, ...], Meta(min_length=1, description="Globs over tool names.")] = ANYONE
    per: Annotated[
        Literal["principal", "tool", "principal_tool", "tenant", "global"],
        Meta(description="What gets its own counter; who has no tenant has one alone."),
    ] = "principal"
    rate_per_s: (
        Annotated[float, Meta(gt=0, le=1e6, description="Calls per second on average; unset: no limit.")] | None
    ) = None
    burst: Annotated[int, Meta(ge=1, le=1_000_000, description="Calls that may come at once (burst).")] = 1
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000, description="Calls in flight; unset: no limit.")] | None = None
    quota: Annotated[int, Meta(ge=0, le=1 << 53, description="Calls per quota_window_s; unset: no limit.")] | None = (
        None
    )
    quota_window_s: Annotated[float, Meta(gt=0, le=31_622_400, description="Seconds, counted from the first call.")] = (
        86_400.0
    )


class StorageRule(Section, frozen=True, kw_only=True):
    """How many bytes each of these principals may store. The first entry that names a principal and sets a bound
    defines it; without one, the hub's configuration does."""

    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description="Globs over principal ids.")] = ANYONE
    workspace_bytes: Annotated[
        Bytes | None, Meta(description="Files of all workspaces of one principal; unset: `workspace.quota_bytes`.")
    ] = None
    artifact_bytes: Annotated[
        Bytes | None, Meta(description="Artifacts of one principal; unset: `artifacts.quota_bytes`.")
    ] = None
    memory_bytes: Annotated[
        Bytes | None, Meta(description="Remembered items of one principal; unset: `memory.max_bytes`.")
    ] = None
    soft_ratio: (
        Annotated[
            float,
            Meta(gt=0, le=1, description="Share of a bound from which on results say so; unset: `storage.soft_ratio`."),
        ]
        | None
    ) = None


class Egress(Section, frozen=True, kw_only=True):
    """Hosts that may be dialled. A request passes when one entry matches it whole."""

    principals: Annotated[tuple[Glob, ...], Meta(min_length=1, description=_WHOM)] = ANYONE
    tools: Annotated[tuple[Glob, ...], Meta(min_length=1, description="Globs over tool names.")] = ANYONE
    hosts: Annotated[
        tuple[Glob, ...],
        Meta(
            min_length=1,
            description="Names, `*.example.com` (subdomains only), literal addresses, `*` for any public host.",
        ),
    ]
    schemes: Annotated[tuple[Literal["https", "http"], ...], Meta(min_length=1, description="Allowed schemes.")] = (
        "https",
        "http",
    )
    ports: Annotated[tuple[Port, ...], Meta(description="Allowed ports; empty: the scheme's default only.")] = ()
    paths: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^/[^?#]*$", max_length=1_024)], ...],
        Meta(description="Path prefixes, such as `/v1` (matches `/v1` and paths below it); empty: any path."),
    ] = ()
    methods: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Z]{1,20}$")], ...], Meta(min_length=1, description="Allowed methods.")
    ] = ("GET", "HEAD")
    cidrs: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(description="Allowed networks that are not public, such as `10.0.0.0/8`; empty: public addresses only."),
    ] = ()
    retry_with_key: Annotated[
        bool,
        Meta(
            description="Whether these hosts honour `Idempotency-Key`. A call that has a key then sends it with a "
            "POST, PUT, PATCH or DELETE, which is tried again when it fails."
        ),
    ] = False


class Flag(Section, frozen=True, kw_only=True):
    """One flag that a binary may be given."""

    flag: Annotated[str, Meta(pattern=r"^-[^\s=]+$", max_length=64, description="As typed: `-n` or `--max-count`.")]
    value: Annotated[RE2 | None, Meta(description="RE2 pattern of the whole value; unset: the flag takes none.")] = None


class Command(Section, frozen=True, kw_only=True):
    """One binary and the grammar of its arguments, or `preset: safe` alone for the built-in harmless readers."""

    preset: Annotated[
        Literal["safe"] | None, Meta(description="A built-in list of commands; excludes all other keys of the entry.")
    ] = None
    name: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$|^$", max_length=64, description="argv[0]; never a path.")
    ] = ""
    path: Annotated[str, Meta(max_length=512, description="Absolute path of the binary; PATH is never searched.")] = ""
    flags: Annotated[tuple[Flag, ...], Meta(description="Allowed flags.")] = ()
    positionals: Annotated[
        RE2 | None, Meta(description="RE2 pattern of each whole positional; unset: none are allowed.")
    ] = None
    positionals_are_paths: Annotated[
        bool, Meta(description="Whether positionals are workspace paths and checked as paths.")
    ] = False
    positionals_max: Annotated[int, Meta(ge=0, le=10_000, description="Maximum number of positionals.")] = 16
    subcommands: Annotated[tuple[str, ...], Meta(description="When not empty, argv[1] must be one of these.")] = ()
    end_of_options: Annotated[bool, Meta(description="Whether `--` is put before the positionals.")] = True
    environment: Annotated[dict[str, str], Meta(description="Variables added to the empty environment.")] = {}


class DeniedCommandRule(Section, frozen=True, kw_only=True):
    """Commands that no entry of `commands` can allow, beside those that are always refused."""

    id: Annotated[Id, Meta(description="Unique; named in refusals (`details.danger`) and in the audit log.")]
    pattern: Annotated[
        RE2,
        Meta(
            min_length=1,
            description="RE2, searched in the words of a command joined by spaces, and in each command that a shell or "
            "a starter such as `sudo` would run; anchor it with `^`.",
        ),
    ]


class SandboxRule(Section, frozen=True, kw_only=True):
    """What a tool may take from the machine."""

    max_read_bytes: Annotated[Bytes, Meta(description="Largest file read.")] = 5 * 1024 * 1024
    max_write_bytes: Annotated[Bytes, Meta(description="Largest file written.")] = 100 * 1024 * 1024
    max_http_bytes: Annotated[Bytes, Meta(description="Largest HTTP body, inflated.")] = 5 * 1024 * 1024
    max_download_bytes: Annotated[Bytes, Meta(description="Largest download.")] = 100 * 1024 * 1024
    max_search_files: Annotated[
        int, Meta(ge=0, le=10_000_000, description="Maximum number of files that one search opens.")
    ] = 2_000
    may_overwrite: Annotated[bool, Meta(description="Whether `overwrite: true` is allowed.")] = True
    command_cpu_s: Annotated[int, Meta(ge=1, le=86_400, description="CPU seconds of a command.")] = 30
    command_memory_bytes: Annotated[Bytes, Meta(description="Address space of a command.")] = 1024 * 1024 * 1024
    command_file_bytes: Annotated[Bytes, Meta(description="Largest file a command writes.")] = 100 * 1024 * 1024
    command_processes: Annotated[int, Meta(ge=1, le=65_536, description="Processes of a command.")] = 64
    require_bubblewrap: Annotated[bool, Meta(description="Refuse commands where bubblewrap is missing.")] = False
    minimum: Annotated[
        Level,
        Meta(description="What must hold commands, skills, programs and LangChain workers, or they are refused."),
    ] = "rlimits"
    minimum_for: Annotated[
        dict[Annotated[str, Meta(max_length=256)], Level],
        Meta(max_length=1_000, description="More for tools by name, such as `skill/*: bubblewrap`."),
    ] = {}


class PolicyDocument(Section, frozen=True, kw_only=True):
    """The whole of policy.yaml."""

    extends: Annotated[
        Literal["starter", "none"], Meta(description="What this file adds to: the built-in starter policy, or nothing.")
    ] = "starter"
    grants: Annotated[tuple[Grant, ...], Meta(max_length=10_000, description="Who holds which capabilities.")] = ()
    roles: Annotated[tuple[Roles, ...], Meta(max_length=10_000, description="Who may use which services.")] = ()
    tenants: Annotated[
        tuple[TenantRule, ...], Meta(max_length=10_000, description="Who belongs together, and sees nothing of others.")
    ] = ()
    rules: Annotated[tuple[Rule, ...], Meta(max_length=10_000, description="Exceptions to the grants.")] = ()
    limits: Annotated[tuple[LimitRule, ...], Meta(max_length=10_000, description="Rates, concurrency, quotas.")] = ()
    storage: Annotated[
        tuple[StorageRule, ...],
        Meta(max_length=10_000, description="Bytes that principals may store; those of tenants stand in `tenants`."),
    ] = ()
    egress: Annotated[
        tuple[Egress, ...], Meta(max_length=10_000, description="Hosts that tools may connect to; none: no network.")
    ] = ()
    blocked_cidrs: Annotated[
        tuple[Annotated[str, Meta(max_length=64)], ...],
        Meta(
            max_length=10_000,
            description="Networks that tools never connect to, whatever `egress` opens, such as `203.0.113.0/24`.",
        ),
    ] = ()
    commands: Annotated[
        tuple[Command, ...], Meta(max_length=1_000, description="Commands that may be run; none: no commands.")
    ] = ()
    denied_commands: Annotated[
        tuple[DeniedCommandRule, ...],
        Meta(max_length=256, description="Commands that are refused whatever `commands` allows."),
    ] = ()
    sandbox: Annotated[SandboxRule, Meta(description="Limits on what a tool may use of the machine.")] = SandboxRule()
    impersonate: Annotated[
        tuple[Glob, ...], Meta(description="Whose calls may name another agent_id or user_id; as `principals`.")
    ] = ()
    destructive_requires_plan: Annotated[
        bool,
        Meta(description="Whether `danger:destructive` needs a dry run first, unless an ALLOW rule names the tool."),
    ] = True
    approval_by_default: Annotated[
        tuple[Glob, ...],
        Meta(
            description="Capabilities (globs) whose tools need a person's approval, unless an ALLOW rule names the "
            "tool or the capability; empty: none."
        ),
    ] = (SEND_MESSAGE,)


def document_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of policy.yaml."""
    return msgspec.json.schema(PolicyDocument)


# Keys that the first version had not. An approval holds for one revision: that a hub is updated must not change it.
# A key of this list whose default changes its meaning has to leave it.
_ADDED = ("approval_by_default", "blocked_cidrs", "denied_commands", "storage", "tenants")
_ADDED_TO_EGRESS = ("retry_with_key",)
_ADDED_TO_TENANTS = (
    "max_artifact_bytes",
    "max_artifacts",
    "max_memory_bytes",
    "max_open_approvals",
    "max_open_jobs",
    "max_workspace_bytes",
)
_ADDED_TO_SANDBOX = ("minimum", "minimum_for")
_fields = cache(msgspec.structs.fields)


def canonical_bytes(document: PolicyDocument) -> bytes:
    """The document as JSON in the order of its keys, every default written out but those of keys that came later: what
    a revision is the digest of."""
    written = msgspec.to_builtins(document, order="deterministic")
    _leave_out(written, document, _ADDED)
    _leave_out(written["sandbox"], document.sandbox, _ADDED_TO_SANDBOX)
    for entry, rule in zip(written["egress"], document.egress, strict=True):
        _leave_out(entry, rule, _ADDED_TO_EGRESS)
    for entry, tenant in zip(written.get("tenants", ()), document.tenants, strict=True):
        _leave_out(entry, tenant, _ADDED_TO_TENANTS)
    return msgspec.json.encode(written)


def _leave_out(written: dict[str, Any], section: msgspec.Struct, names: Iterable[str]) -> None:
    """The keys of that name that stand at their default."""
    for each in _fields(type(section)):
        made = each.default_factory
        default = each.default if made is msgspec.NODEFAULT else made()
        if each.name in names and getattr(section, each.name) == default:
            # As long as nobody uses a new key, the digest is what it was before there was one.
            del written[each.name]
