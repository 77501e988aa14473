"""`when:` of a rule, in CEL (cel-spec), compiled when the policy is loaded.

An expression sees nine variables and no clock, randomness or I/O: the same call always gets the same answer.

    args       the completed arguments, as JSON; guarded paths and URLs in normal form
    call       reads, writes, urls, commands: what the call touches, whatever its tool calls the arguments
               (call_facts.py)
    tool       name, version, kind, source, capabilities, tags, read_only, destructive, idempotent, open_world
    principal  id, roles, tenant, groups, issuer: the caller, by its credential
    subject    id of the one for whom the call is made: the user or agent named with `impersonate`, or the principal
    actor      id of the one who acts: the actor in the principal's token, or the principal
    delegation ids of all who act for the subject, the current actor first; empty where it acts itself
    context    request_id, task_id, session_id, agent_id, user_id, labels, mode
    sql        kind, tables, functions, actions of a statement for a database; empty where a call has none, or one that
               cannot be read, which the guard refuses

`path.overlaps(folder)` is the hub's own function (call_facts.py). A syntax error, an unknown variable or an unknown
function makes the document invalid. What can only be seen with a call in hand (a missing argument, a wrong type, an
answer that is no bool) raises ConditionFault, which is a deny. `matches` is linear-time (Rust regex). What a condition
may cost is estimated before it runs, and bounded (condition_cost.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.excerpts import excerpt
from toolhub_service.domain.tool import canonical_capabilities
from toolhub_service.policy.arguments import statement_of
from toolhub_service.policy.call_facts import facts_of, overlaps, spelled_arguments
from toolhub_service.policy.condition_cost import Cost, cost_of

if TYPE_CHECKING:
    import cel


FUNCTIONS = frozenset(
    "size contains startsWith endsWith matches has int uint double string bytes type "
    "timestamp duration all exists exists_one map filter getFullYear getMonth getDate getDayOfMonth "
    "getDayOfWeek getDayOfYear getHours getMinutes getSeconds getMilliseconds".split()
)
"""Named functions of the language; operators have names that are not identifiers."""

OWN_FUNCTIONS: dict[str, Callable[..., Any]] = {"overlaps": overlaps}
"""Functions that the language lacks."""

TYPES = frozenset("int uint double string bytes bool list map null_type type".split())

_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")


class ConditionFault(Exception):
    """The condition could not be evaluated for this call. The message contains no value of the call."""


class Expression:
    """One compiled expression over the variables of its user."""

    __slots__ = ("_cost", "_own_functions", "_program", "members", "names", "text")

    def __init__(self, text: str, known: Collection[str]) -> None:
        """`known` are the names of all variables. Raises ValueError, with a sentence for the author, when the
        expression cannot be compiled."""
        import cel  # here, because its package includes a command line: 15 MB that a policy without conditions saves

        self.text = text
        try:
            self._program = cel.compile(text)
        except ValueError as error:
            raise ValueError(f"not a CEL expression: {_first_line(str(error))}") from None
        self.names = _names(self._program, text, known)
        """Variables that the expression reads."""
        called = set(self._program.functions())
        self._own_functions = {name: function for name, function in OWN_FUNCTIONS.items() if name in called}
        self._cost = cost_of(text, frozenset(known))
        self.members = {name: _members(self._cost, name) for name in self.names}
        """Members that it reads of each; None: all."""

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """Return the result for `variables`, a mapping for each of `names`. Raises ConditionFault."""
        read = dict(variables)
        for name, members in self.members.items():
            if members is not None:  # only what is read, so that other members cost nothing
                held = variables[name] if isinstance(variables[name], Mapping) else {}
                read[name] = {member: held[member] for member in members if member in held}
        if not self._cost.is_within(read):
            raise ConditionFault("the arguments that it reads are larger than its cost limit allows")
        try:
            answer = self._program.execute(self._with_functions(read) if self._own_functions else read)
        except KeyError as error:
            raise ConditionFault(f"it reads {self._name_of(error)}, which the call does not have") from None
        # A panic of the Rust interpreter is a BaseException; it must be a deny, not end the process.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise ConditionFault(f"it cannot be evaluated ({type(error).__name__})") from None
        # Identity: 1 == True in Python, and a result of 1 is not a bool.
        if answer is True or answer is False:
            return answer
        raise ConditionFault("its value is neither true nor false")

    def _with_functions(self, variables: dict[str, Any]) -> cel.Context:
        import cel

        context = cel.Context()
        context.update({**variables, **self._own_functions})
        return context

    def _name_of(self, error: KeyError) -> str:
        key = str(error.args[0]) if error.args else ""
        # A key that is not in the expression's text may come from the call's arguments and be a secret.
        return f"`{key}`" if key.isidentifier() and key in self.text else "a key"


class Condition:
    """One compiled expression over a call."""

    __slots__ = ("_expression", "_sources", "text")

    def __init__(self, text: str) -> None:
        """Raises ValueError, with a sentence for the operator, when the expression cannot be compiled."""
        self.text = text
        self._expression = Expression(text, VARIABLES)
        self._sources = tuple((name, VARIABLES[name]) for name in self._expression.names)

    def holds(self, planned: PlannedCall) -> bool:
        """Return whether the call meets the condition. Raises ConditionFault."""
        return self._expression.holds({name: source(planned) for name, source in self._sources})


def _names(program: cel.Program, text: str, known: Collection[str]) -> tuple[str, ...]:
    # The compiler lists the variables of macros among the free ones.
    bound = set(_BOUND.findall(text))
    names = program.variables()
    unknown = sorted(set(names) - set(known) - bound - TYPES)
    if unknown:
        raise ValueError(f"unknown variable `{unknown[0]}`; known: {', '.join(known)}")
    # Names with a leading underscore are CEL's own, to which its macros expand.
    used = (name for name in program.functions() if name.isidentifier() and not name.startswith("_"))
    if foreign := sorted(set(used) - FUNCTIONS - OWN_FUNCTIONS.keys()):
        raise ValueError(f"unknown function `{foreign[0]}`")
    return tuple(name for name in names if name in known)


def _members(cost: Cost, name: str) -> tuple[str, ...] | None:
    """Return the members of a variable that an expression reads; None: all."""
    members = {member for root, member in cost.members if root == name}
    return None if "" in members else tuple(members)


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
    return {
        "id": principal.id,
        "roles": sorted(role.value for role in principal.roles),
        "tenant": principal.tenant,
        "groups": sorted(principal.groups),
        "issuer": principal.issuer,
    }


def _subject(planned: PlannedCall) -> dict[str, Any]:
    return {"id": planned.call.subject}


def _delegation(planned: PlannedCall) -> list[str]:
    call = planned.call
    acts_itself = call.subject == call.principal.id
    return [*call.principal.actors, *(() if acts_itself else (call.principal.id,))]


def _actor(planned: PlannedCall) -> dict[str, Any]:
    principal = planned.call.principal
    return {"id": principal.actors[0] if principal.actors else principal.id}


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
        return {"kind": "", "tables": [], "functions": [], "actions": []}
    return {
        "kind": statement.kind,
        "tables": list(statement.tables),
        "functions": list(statement.functions),
        "actions": list(statement.actions),
    }


def _call(planned: PlannedCall) -> dict[str, Any]:
    return facts_of(planned)._asdict()


VARIABLES: dict[str, Callable[[PlannedCall], Any]] = {
    "args": spelled_arguments,
    "call": _call,
    "tool": _tool,
    "principal": _principal,
    "subject": _subject,
    "actor": _actor,
    "delegation": _delegation,
    "context": _context,
    "sql": _sql,
}


def _first_line(text: str) -> str:
    found = re.search(r"<input>:(\d+):(\d+): (.*)", text)
    return f"column {found.group(2)}: {excerpt(found.group(3), 160)}" if found else "it cannot be parsed"
