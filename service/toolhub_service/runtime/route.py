"""Step 1, resolve: which tool, which version, is it callable? And everything that is known before a call's arguments.

A route is computed once for a principal and a tool, and is valid for one version of the policy and of the catalog: with
the next version of either all routes are dropped, so that no call uses an outdated one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain, islice, zip_longest
from typing import Final

import msgspec

from toolhub_service.domain.call import Call, Principal
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import Adapter, Catalog, PolicySource
from toolhub_service.domain.tool import IdempotencyMode, ToolKind, ToolSpec, ToolState
from toolhub_service.domain.verdict import Verdict
from toolhub_service.registry.export.names_given import NamesGiven, possible_names
from toolhub_service.schema.tool_schemas import ToolSchemas, for_tool

# Most routes kept; the oldest is dropped first.
_ROUTES_MAX: Final = 16_384

_SUGGESTIONS_MAX = 3
# Names that a wrong one is compared with; comparing it with 5,000 would delay every other call by 160 ms.
_COMPARED_MAX = 100
# Tools that are judged by the policy for the suggestions of one call; a caller who may see few of them gets fewer.
_JUDGED_MAX = 500

# A word of a name, in camelCase or between other signs.
_WORD = re.compile(r"[A-Za-z][a-z]{2,15}")


class Route(msgspec.Struct, frozen=True, eq=False):
    """What holds for all calls of one tool by one principal."""

    spec: ToolSpec
    adapter: Adapter
    schemas: ToolSchemas
    policy_version: int
    verdict: Verdict | None
    """Verdict for calls in the principal's own name and with its whole grant; None: policy must see the arguments."""
    has_side_effects: bool | None
    """For every call; None: the adapter must see the arguments."""
    upstream: str | None
    """Upstream of every call; None: the adapter must see the arguments."""
    becomes_job: bool
    """Whether a plain call is answered with a job."""
    derives_key: bool
    """Whether the hub derives an idempotency key for a call without one."""


class Routes:
    """The routes of one version of policy and catalog, each created when it is first used."""

    def __init__(
        self, catalog: Catalog, policy: PolicySource, adapters: Mapping[ToolKind, Adapter], unread: Unread
    ) -> None:
        self._catalog = catalog
        self._policy = policy
        self._adapters = adapters
        self._unread = unread
        self._names = NamesGiven(catalog)
        self._routes: dict[tuple[int, int, str, str], Route] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def of(self, call: Call) -> Route:
        """Return the route of a call. Raises as `resolve`, SchemaRefused, and TOOL_CHANGED where the caller knows
        another definition."""
        key = (self._policy.version, self._catalog.version, call.principal.key, call.tool)
        route = self._routes.get(key) or self._make_route(key, call)
        if call.expected_tool_digest and call.expected_tool_digest != route.spec.digest:
            raise refuse_changed_tool(call, route.spec)
        return route

    def _make_route(self, key: tuple[int, int, str, str], call: Call) -> Route:
        spec = self._resolve_exported(call) or resolve(
            call, self._catalog, self._policy, self._unread_for(call.principal)
        )
        adapter = self._adapters[spec.kind]
        fixed = adapter.fixed_terms(spec)
        route = Route(
            spec=spec,
            adapter=adapter,
            schemas=for_tool(spec),
            policy_version=key[0],
            verdict=self._policy.decide_beforehand(call.principal, spec),
            has_side_effects=fixed.has_side_effects,
            upstream=fixed.upstream,
            becomes_job=spec.cost.is_async,
            derives_key=spec.idempotency is IdempotencyMode.DERIVED,
        )
        oldest = next(iter(self._routes), None)
        if oldest is not None and oldest[:2] != key[:2]:
            self._routes.clear()
        elif len(self._routes) >= _ROUTES_MAX and oldest is not None:
            del self._routes[oldest]
        self._routes[key] = route
        return route

    def _resolve_exported(self, call: Call) -> ToolSpec | None:
        """Return the tool of a call by the name that an export has given it. Raises as `resolve`; None where the name
        is no such name, or of a tool that its caller may not know of."""
        if "/" in call.tool or not (tool := self._names.tool_of(call.tool)):
            return None
        spec, tenancy = self._catalog.get(tool), call.principal.tenancy
        if spec is None or (tenancy is not None and not tenancy.shows(spec.source)):
            return None
        try:
            return resolve(call._replace(tool=tool), self._catalog, self._policy, self._unread)
        except HiddenTool as hidden:  # the caller must not learn which tool the name is of
            raise HiddenTool(not_found(call, self._catalog, self._policy), hidden.reason) from hidden

    def _unread_for(self, principal: Principal) -> Unread:
        """As `Unread`, also of the names that an export may have given; first of those that the principal may see, and
        none of another tenant's source, whose reason its auditors must not read either."""
        tenancy = principal.tenancy

        def find_unread(tool: str) -> UnreadTool | None:
            names = (tool, *possible_names(tool))
            shown = [name for name in names if tenancy is None or tenancy.shows(name.partition("/")[0])]
            found = [each for name in shown if (each := self._unread(name)) is not None]
            return next((each for each in found if each.may_be_seen(principal, self._policy)), next(iter(found), None))

        return find_unread


SEARCH_FOR_IT = "Search for one by what it does: SearchTools, `toolhub tools search`, or `search` of a client."
"""Worded for agents, people at the command line and programs, who all read the same error."""


class UnreadTool(msgspec.Struct, frozen=True):
    """A tool that may still appear, because its source has not been read in this process."""

    reason: str
    """Why the source has not been read."""
    may_be: tuple[ToolSpec, ...]
    """The tool as policy may see it then: with each set of capabilities that sources.yaml names for the source."""

    def may_be_seen(self, principal: Principal, policy: PolicySource) -> bool:
        return any(policy.could_allow(principal, each) for each in self.may_be)


Unread = Callable[[str], UnreadTool | None]
"""Returns what is known of a tool of that full name whose source has not been read; None where it has, or is none."""


def all_read(_tool: str) -> UnreadTool | None:
    return None


class HiddenTool(ToolFailure):
    """TOOL_NOT_FOUND for a tool that cannot be called now, and that the caller may not see in any case."""

    def __init__(self, shown: ToolFailure, reason: str) -> None:
        """`shown` is the refusal of a tool that does not exist; `reason` is for the audit log."""
        super().__init__(shown.error)
        self.reason = reason


def resolve(call: Call, catalog: Catalog, policy: PolicySource, unread: Unread = all_read) -> ToolSpec:
    """Return the tool's definition. Raises TOOL_NOT_FOUND (with similar names), also for a tool that cannot be called
    now and that the caller may not see; else TOOL_QUARANTINED or TOOL_UNAVAILABLE."""
    spec = catalog.get(call.tool)
    tenancy = call.principal.tenancy
    if tenancy is not None and not tenancy.shows(_source(call.tool, spec)):
        raise not_found(call, catalog, policy)
    if spec is None:
        missing = unread(call.tool)
        if missing is None:
            raise not_found(call, catalog, policy)
        if not missing.may_be_seen(call.principal, policy):
            raise HiddenTool(not_found(call, catalog, policy), f"hidden by policy; its source: {missing.reason}")
        raise _not_there_yet(call, missing.reason)
    if spec.state is ToolState.ACTIVE:
        return spec
    if not policy.could_allow(call.principal, spec):
        why = spec.state_reason or spec.state.value.lower()
        raise HiddenTool(not_found(call, catalog, policy), f"hidden by policy; {spec.state.value.lower()}: {why}")
    if spec.state is ToolState.QUARANTINED:
        why = spec.state_reason.rstrip(".") or "it is not approved"
        raise refuse(
            ErrorKind.TOOL_QUARANTINED,
            f"{spec.name} awaits an operator's decision: {why}. Use another tool.",
            reason=spec.state_reason,
        )
    raise refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"{spec.name} cannot be used now: {spec.state_reason or spec.state.value.lower()}.",
        # A source may come back; a built-in or custom tool that lacks something on the machine stays unavailable until
        # an operator acts.
        retryable=spec.state is ToolState.UNAVAILABLE and spec.kind is not ToolKind.CORE,
        reason=spec.state_reason,
        state=spec.state.value,
    )


def _source(tool: str, spec: ToolSpec | None) -> str:
    """Return the source of a name, whether or not the tool exists."""
    return tool.partition("/")[0] if spec is None else spec.source


def refuse_changed_tool(call: Call, spec: ToolSpec) -> ToolFailure:
    return refuse(
        ErrorKind.TOOL_CHANGED,
        f"The definition of {spec.name} has changed. Get the tool again (GetTool), and call it with the new digest "
        "if the call still fits.",
        tool_digest=spec.digest,
        expected_tool_digest=call.expected_tool_digest,
    )


def _not_there_yet(call: Call, reason: str) -> ToolFailure:
    """Right after a start it is unknown which tools a source has; a job that waits for one must not fail for that
    reason."""
    return refuse(
        ErrorKind.TOOL_UNAVAILABLE,
        f"{call.tool} cannot be used now, because its source cannot: {reason.rstrip('.')}.",
        reason=reason,
        state=ToolState.UNAVAILABLE.value,
    )


def not_found(
    call: Call,
    catalog: Catalog,
    policy: PolicySource,
    shown: Callable[[str], str] | None = None,
    advice: str = SEARCH_FOR_IT,
) -> ToolFailure:
    """Return TOOL_NOT_FOUND; it suggests only tools that the caller may see, so that guessing names does not reveal
    denied ones.

    `shown` returns the name of a tool in the caller's protocol, where that has names of its own. The requested name is
    not repeated then, because the call may have it in another spelling. `advice`: where to look when no name is
    similar.
    """
    sight = _Sight(call.principal, policy)
    specs: Sequence[ToolSpec] = catalog.all()
    close = get_close_matches(call.tool, _neighbours(call.tool, specs, sight), n=_SUGGESTIONS_MAX, cutoff=0.6)
    close += [name for name in _of_the_same_words(call.tool, specs, sight) if name not in close]
    visible = close[:_SUGGESTIONS_MAX]
    if shown is not None:
        visible = [shown(name) for name in visible]
    advice = f"Did you mean {', '.join(visible)}?" if visible else advice
    name = "of this name" if shown is not None else f"named {call.tool!r}"
    return refuse(ErrorKind.TOOL_NOT_FOUND, f"There is no tool {name}. {advice}", did_you_mean=visible)


def _neighbours(name: str, specs: Sequence[ToolSpec], sight: _Sight) -> list[str]:
    """Return the alphabetical neighbours of the name that may be seen, the nearest first; all of a small catalog."""
    place = bisect_left(specs, name, key=lambda spec: spec.name)
    nearest = chain.from_iterable(zip_longest(specs[place:], reversed(specs[:place])))
    return sight.first_visible((spec for spec in nearest if spec is not None), _COMPARED_MAX)


def _of_the_same_words(name: str, specs: Sequence[ToolSpec], sight: _Sight) -> list[str]:
    """Return names that contain most words of this one, as models guess them: `read_file` for `core/fs.readText`."""
    words = {word.casefold() for word in _WORD.findall(name.rpartition("/")[2])}
    held: defaultdict[int, list[ToolSpec]] = defaultdict(list)
    for spec in specs if words else ():
        held[sum(word in spec.name.casefold() for word in words)].append(spec)
    for count in sorted(held.keys() - {0}, reverse=True):
        if found := sight.first_visible(held[count], _SUGGESTIONS_MAX):
            return found
    return []


class _Sight:
    """Which tools a principal may see. It judges a bounded number: each of many thousand takes tens of microseconds."""

    def __init__(self, principal: Principal, policy: PolicySource) -> None:
        self._principal = principal
        self._policy = policy
        self._left = _JUDGED_MAX

    def first_visible(self, specs: Iterable[ToolSpec], count: int) -> list[str]:
        """Return the names of the first `count` that may be seen. They are filtered before they are counted: a hidden
        name that took the place of a visible one would show that it exists."""
        return [spec.name for spec in islice(filter(self._may_see, specs), count)]

    def _may_see(self, spec: ToolSpec) -> bool:
        tenancy = self._principal.tenancy
        if spec.state is ToolState.QUARANTINED or (tenancy is not None and not tenancy.shows(spec.source)):
            return False
        self._left -= 1
        return self._left >= 0 and self._policy.could_allow(self._principal, spec)
