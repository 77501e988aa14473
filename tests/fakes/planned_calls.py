"""Planned calls in one line, for tests of policy and budget."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, PlannedCall, Principal
from toolhub_service.domain.tool import (
    Annotations,
    ArgumentRole,
    GuardedArgument,
    IdempotencyMode,
    ToolKind,
    ToolLimits,
    ToolSpec,
)

PATH = ("path", ArgumentRole.PATH_READ)
WRITTEN_PATH = ("path", ArgumentRole.PATH_WRITE)
URL = ("url", ArgumentRole.URL)
METHOD = ("method", ArgumentRole.METHOD)
ARGV = ("argv", ArgumentRole.COMMAND)
COMMAND = ("command", ArgumentRole.COMMAND)
FOLDER = ("cwd", ArgumentRole.WORKING_DIRECTORY)


def a_tool(
    name: str = "core/util.time.now",
    *capabilities: str,
    guarded: tuple[tuple[str, ArgumentRole], ...] = (),
    limits: ToolLimits | None = None,
    idempotency: IdempotencyMode = IdempotencyMode.KEYED,
    **annotations: bool,
) -> ToolSpec:
    return ToolSpec(
        name=name,
        kind=ToolKind.CORE,
        description="For tests.",
        input_schema={"type": "object"},
        output_schema={"type": "object"},
        capabilities=frozenset(capabilities),
        annotations=Annotations(**annotations),
        limits=limits or ToolLimits(),
        idempotency=idempotency,
        guarded=tuple(GuardedArgument(name, role) for name, role in guarded),
    )


def a_call(
    spec: ToolSpec | None = None,
    args: dict[str, Any] | None = None,
    *,
    principal: str | Principal = "local",
    budget: BudgetRequest | None = None,
    deadline_s: float | None = None,
    idempotency_key: str = "",
    **context: Any,
) -> PlannedCall:
    """A planned call; further keywords are fields of its ExecContext."""
    spec = spec or a_tool()
    args = args or {}
    who = principal if isinstance(principal, Principal) else Principal(principal)
    call = Call(
        call_id="call-1",
        tool=spec.name,
        args=args,
        principal=who,
        context=ExecContext(budget=budget or BudgetRequest(), **context),
        deadline_s=deadline_s,
        idempotency_key=idempotency_key,
    )
    digest = hashlib.sha256(json.dumps(args, sort_keys=True).encode()).hexdigest()
    return PlannedCall(call=call, spec=spec, args=args, args_digest=digest)


READ_TEXT = a_tool("core/fs.readText", "read:fs", guarded=(PATH,), read_only=True)
WRITE_TEXT = a_tool("core/fs.writeText", "write:fs", guarded=(WRITTEN_PATH,), destructive=True)
DELETE_PATH = a_tool("core/fs.deletePath", "write:fs", "danger:destructive", guarded=(WRITTEN_PATH,), destructive=True)
REQUEST = a_tool("core/http.request", "network", guarded=(URL, METHOD), destructive=True, open_world=True)
RUN = a_tool("core/exec.run", "execute:command", guarded=(ARGV, COMMAND, FOLDER), destructive=True)
TIME_NOW = a_tool("core/util.time.now", read_only=True)
