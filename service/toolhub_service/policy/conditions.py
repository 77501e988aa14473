"""`when:` of a rule, in CEL (cel-spec), compiled when the policy is loaded.

An expression sees five variables and no clock, randomness or I/O: the same call always gets the same answer.

    args       the completed arguments, as JSON; guarded paths and URLs in their one spelling
    tool       name, version, kind, source, capabilities, tags, read_only, destructive, idempotent, open_world
    principal  id, roles
    context    request_id, task_id, session_id, agent_id, user_id, labels, mode
    sql        kind, tables, functions of a statement for a database; empty where a call has none, or one that cannot be
               read, which the guard refuses

A syntax error, an unknown variable or an unknown function makes the document invalid. What can only be seen with a call
in hand (a missing argument, a wrong type, an answer that is no bool) raises ConditionFault, which is a deny.
`matches` is linear-time (Rust regex). What an expression may cost is estimated before it runs, and bounded
(condition_cost.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.tool import canonical_capabilities
from toolhub_service.policy.arguments import spelled_arguments, statement_of
from toolhub_service.policy.condition_cost import cost_of

if TYPE_CHECKING:
    import cel


FUNCTIONS = frozenset(
    "size contains startsWith endsWith matches has int uint double string bytes type "
    "timestamp duration all exists exists_one map filter getFullYear getMonth getDate getDayOfMonth "
    "getDayOfWeek getDayOfYear getHours getMinutes getSeconds getMilliseconds".split()
)
"""Named functions of the language; operators have names that are no identifiers."""

TYPES = frozenset("int uint double string bytes bool list map null_type type".split())

_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")


class ConditionFault(Exception):
    """The condition could not be answered for this call. The message names no value of the call."""


class Condition:
    """One compiled expression."""

    __slots__ = ("_argument_names", "_cost", "_program", "_sources", "text")

    def __init__(self, text: str) -> None:
        """Raises ValueError, with a sentence for the operator, when the expression cannot be compiled."""
        import cel  # here, for its package brings a command line along: 15 MB that a policy without conditions spares

        self.text = text
        try:
            self._program = cel.compile(text)
        except ValueError as error:
            raise ValueError(f"not a CEL expression: {_first_line(str(error))}") from None
        self._sources = _sources(self._program, text)
        self._cost = cost_of(text)
        names = {member for root, member in self._cost.members if root == "args"}
        self._argument_names = None if "" in names else tuple(names)

    def holds(self, planned: PlannedCall) -> bool:
        """Whether the call meets the condition. Raises ConditionFault."""
        variables = {name: source(planned) for name, source in self._sources}
        if self._argument_names is not None and "args" in variables:
            args = variables["args"]  # only what is read: whatever else a call brings costs it nothing
            variables["args"] = {name: args[name] for name in self._argument_names if name in args}
        if not self._cost.is_within(variables):
            raise ConditionFault("the arguments that it reads are larger than its cost limit allows")
        try:
            answer = self._program.execute(variables)
        except KeyError as error:
            raise ConditionFault(f"it reads {self._name_of(error)}, which the call does not have") from None
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ConditionFault(f"it cannot be evaluated ({type(error).__name__})") from None
        if answer is True or answer is False:
            return answer
        raise ConditionFault("its value is neither true nor false")

    def _name_of(self, error: KeyError) -> str:
        key = str(error.args[0]) if error.args else ""
        return f"`{key}`" if key.isidentifier() and key in self.text else "a key"


def _sources(program: cel.Program, text: str) -> tuple[tuple[str, Callable[[PlannedCall], Any]], ...]:
    bound = set(_BOUND.findall(text))
    names = program.variables()
    unknown = sorted(set(names) - VARIABLES.keys() - bound - TYPES)
    if unknown:
        raise ValueError(f"unknown variable `{unknown[0]}`; known: {', '.join(VARIABLES)}")
    # Names with a leading underscore are CEL's own; its macros expand to them.
    used = (name for name in program.functions() if name.isidentifier() and not name.startswith("_"))
    if foreign := sorted(set(used) - set(FUNCTIONS)):
        raise ValueError(f"unknown function `{foreign[0]}`")
    return tuple((name, VARIABLES[name]) for name in names if name in VARIABLES)


def _tool(planned: PlannedCall) -> dict[str, Any]:
    spec = planned.spec
    return {
        "name": spec.name,
        "version": spec.version,
        "kind": spec.kind.value,
        "source": spec.source,
        "capabilities": sorted(canonical_capabilities(spec.capabilities)),
        "tags": list(spec.tags),
        "read_only": spec.annotations.read_only,
        "destructive": spec.annotations.destructive,
        "idempotent": spec.annotations.idempotent,
        "open_world": spec.annotations.open_world,
    }


def _principal(planned: PlannedCall) -> dict[str, Any]:
    principal = planned.call.principal
    return {"id": principal.id, "roles": sorted(role.value for role in principal.roles)}


def _context(planned: PlannedCall) -> dict[str, Any]:
    context = planned.call.context
    return {
        "request_id": context.request_id,
        "task_id": context.task_id,
        "session_id": context.session_id,
        "agent_id": context.agent_id,
        "user_id": context.user_id,
        "labels": dict(context.labels),
        "mode": planned.call.mode.value,
    }


def _sql(planned: PlannedCall) -> dict[str, Any]:
    statement = statement_of(planned)
    if statement is None:
        return {"kind": "", "tables": [], "functions": []}
    return {"kind": statement.kind, "tables": list(statement.tables), "functions": list(statement.functions)}


VARIABLES: dict[str, Callable[[PlannedCall], Any]] = {
    "args": spelled_arguments,
    "tool": _tool,
    "principal": _principal,
    "context": _context,
    "sql": _sql,
}


def _first_line(text: str) -> str:
    found = re.search(r"<input>:(\d+):(\d+): (.*)", text)
    return f"column {found.group(2)}: {found.group(3)[:160]}" if found else "it cannot be parsed"
