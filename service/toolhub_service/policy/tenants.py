"""Tenants: which principals belong together, and which sources are theirs alone.

The tenant is a function of a principal's id under the policy in force. Jobs, approvals, artifacts and audit events name
their owner by that id, so that records from before tenants were configured belong to one from then on, on every hub,
and nothing is stored twice (docs/decisions/0060).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from toolhub_service.domain.call import TenantBounds
from toolhub_service.domain.pin import FIRST_USE, WORDS_ONLY
from toolhub_service.policy.patterns import Patterns

EVERY: Final = "*"
"""Not a tenant: its principals belong to none, and see all."""
UNASSIGNED: Final = "-"
"""Principals that no entry names, where there are tenants: they see nothing of any tenant, and no tenant sees anything
of theirs."""
PLACEHOLDER: Final = "{tenant}"
# A tenant as a token's claim or a SPIFFE trust domain names it: it ends at any other character.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOBODY: Final = frozenset({"", FIRST_USE, WORDS_ONLY})
_REMEMBERED_MAX: Final = 16_384

Bound = Annotated[int, Meta(ge=0, le=2**53)]
TenantGlob = Annotated[str, Meta(min_length=1, max_length=256)]


class TenantRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first entry that names a principal says which tenant it belongs to. Entries of one name add up."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,127}|\*|\{tenant\})$",
            description="The tenant. `{tenant}`: the part of the principal's id that `{tenant}` matches. `*`: no "
            "tenant, but the operators of the whole hub, who see all.",
        ),
    ]
    principals: Annotated[
        tuple[TenantGlob, ...],
        Meta(
            description="Globs over principal ids. With `name: {tenant}`, such as `corp:{tenant}/*` or "
            "`spiffe://{tenant}/*`."
        ),
    ] = ()
    sources: Annotated[
        tuple[TenantGlob, ...],
        Meta(
            description="Globs over names of sources that no other tenant sees, unless it lists them, too. A source "
            "that no entry lists is everybody's."
        ),
    ] = ()
    max_artifact_bytes: Annotated[
        Bound | None, Meta(description="Bytes of all artifacts of the tenant's principals together.")
    ] = None
    max_artifacts: Annotated[Bound | None, Meta(description="How many artifacts they may keep together.")] = None
    max_workspace_bytes: Annotated[Bound | None, Meta(description="Bytes of all their workspaces together.")] = None
    max_memory_bytes: Annotated[
        Bound | None, Meta(description="Bytes of all that they have remembered (core/memory.*) together.")
    ] = None
    max_open_jobs: Annotated[
        Bound | None, Meta(description="How many of their jobs may be waiting or running at a time.")
    ] = None
    max_open_approvals: Annotated[
        Bound | None, Meta(description="How many of their calls may wait for a person at a time.")
    ] = None

    @property
    def bounds(self) -> dict[str, int]:
        """The limits that the entry sets."""
        found = {name: getattr(self, name) for name in TenantBounds._fields}
        return {name: bound for name, bound in found.items() if bound is not None}


def find_tenant_errors(rules: Sequence[TenantRule]) -> Iterator[tuple[str, str]]:
    """Yield the path and a sentence for each error in the entries."""
    for index, rule in enumerate(rules):
        path = f"$.tenants[{index}]"
        is_open = rule.name == PLACEHOLDER
        for place, text in enumerate(rule.principals):
            before, found, after = text.partition(PLACEHOLDER)
            if not is_open and found:
                yield f"{path}.principals[{place}]", f"`{PLACEHOLDER}` needs `name: '{PLACEHOLDER}'`"
            # After a star the beginning of the tenant would be ambiguous, and a caller might choose it.
            elif is_open and not (found and before and "*" not in before and PLACEHOLDER not in after):
                yield f"{path}.principals[{place}]", f"needs `{PLACEHOLDER}` once, behind a text without stars"
            # Such a character could belong to the tenant as well, so that its end would be ambiguous.
            elif is_open and after and re.match(r"[A-Za-z0-9._*-]", after):
                yield f"{path}.principals[{place}]", f"`{PLACEHOLDER}` must end the id or stand before a sign such as /"
        if rule.sources and rule.name in (EVERY, PLACEHOLDER):
            yield f"{path}.sources", "sources belong to tenants that have a name of their own"
        if rule.name == EVERY and rule.bounds:
            yield f"{path}.{next(iter(rule.bounds))}", "bounds are of a tenant, and these principals are of none"


class Tenancy:
    """Implements `domain.call.Tenancy`."""

    __slots__ = ("_tenants", "bounds", "name")

    def __init__(self, name: str, tenants: Tenants) -> None:
        self.name = name
        self.bounds = tenants.bounds(name)
        self._tenants = tenants

    def __eq__(self, other: object) -> bool:
        """Return whether both show the same, whichever policy they belong to."""
        return isinstance(other, Tenancy) and (self.name, self._tenants.shown) == (other.name, other._tenants.shown)

    def __hash__(self) -> int:
        return hash(self.name)

    def holds(self, principal_id: str) -> bool:
        return self._tenants.of(principal_id) == self.name

    def shows(self, source: str) -> bool:
        return self._tenants.shows(self.name, source)

    def owns(self, source: str) -> bool:
        return self._tenants.owners(source) == {self.name}


class Tenants:
    """The tenant entries of one policy."""

    def __init__(self, rules: Sequence[TenantRule]) -> None:
        """`rules` are valid."""
        self.rules = tuple(rules)
        self.shown = tuple((rule.name, rule.principals, rule.sources) for rule in rules)
        """The parts of the entries that decide who sees what."""
        self._entries = [(rule.name, Patterns(rule.principals)) for rule in rules]
        self._sources = [(rule.name, Patterns(rule.sources)) for rule in rules if rule.sources]
        # Tokens may name any number of principals, so the number of remembered ones is limited.
        self._of: dict[str, str] = {}
        self._owners: dict[str, frozenset[str]] = {}
        self._tenancies: dict[str, Tenancy] = {}

    def of(self, principal_id: str) -> str:
        """Return the name of the principal's tenant, UNASSIGNED, or EVERY; empty for an id that stands for nobody."""
        known = self._of.get(principal_id)
        if known is None:
            known = "" if principal_id in _NOBODY else self._find(principal_id)
            if len(self._of) >= _REMEMBERED_MAX:
                self._of.clear()  # cleared as a whole, because threads that read the audit log call this, too
            self._of[principal_id] = known
        return known

    def tenancy(self, principal_id: str) -> Tenancy | None:
        """Return what the principal may see of others; None: all."""
        name = self.of(principal_id)
        return None if name == EVERY else self.tenancy_named(name)

    def tenancy_named(self, name: str) -> Tenancy:
        """Return the tenancy of a tenant, whether or not it has principals."""
        known = self._tenancies.get(name)
        if known is None:
            if len(self._tenancies) >= _REMEMBERED_MAX:
                self._tenancies.clear()
            known = self._tenancies[name] = Tenancy(name, self)
        return known

    def bounds(self, name: str) -> TenantBounds:
        """Return the tenant's limits, each from the first entry with the tenant's own name that sets it, else from
        `{tenant}`."""
        if name in (EVERY, UNASSIGNED):
            return TenantBounds()
        set_by = [rule.bounds for rule in self.rules if rule.name == PLACEHOLDER][::-1]
        set_by += [rule.bounds for rule in self.rules if rule.name == name][::-1]
        return TenantBounds(**{bound: most for bounds in set_by for bound, most in bounds.items()})

    def entry_of(self, principal_id: str) -> tuple[int, str, str] | None:
        """Return (index of the entry that names the principal, the glob, the tenant); None when no entry does."""
        for index, (rule, (name, patterns)) in enumerate(zip(self.rules, self._entries, strict=True)):
            if name != PLACEHOLDER:
                if (pattern := patterns.match(principal_id)) is not None:
                    return index, pattern.text, name
                continue
            for text in rule.principals:
                if found := match_placeholder(text, principal_id):
                    return index, text, found
        return None

    def listing(self, source: str) -> list[int]:
        """Return the indexes of the entries that list the source."""
        return [index for index, rule in enumerate(self.rules) if Patterns(rule.sources).match(source)]

    def owners(self, source: str) -> frozenset[str]:
        """Return the tenants that own the source; empty: it is everybody's."""
        known = self._owners.get(source)
        if known is None:
            known = frozenset(name for name, patterns in self._sources if patterns.match(source))
            if len(self._owners) >= _REMEMBERED_MAX:
                self._owners.clear()
            self._owners[source] = known
        return known

    def shows(self, tenant: str, source: str) -> bool:
        """Return whether principals of that tenant see the tools of the source."""
        owners = self.owners(source)
        return not owners or tenant in owners or tenant == EVERY

    def _find(self, principal_id: str) -> str:
        found = self.entry_of(principal_id)
        return UNASSIGNED if found is None else found[2]


def match_placeholder(pattern: str, principal_id: str) -> str:
    """Return the text in place of `{tenant}`; empty where the pattern does not match."""
    before, _, after = pattern.partition(PLACEHOLDER)
    if not principal_id.startswith(before):
        return ""
    found = _NAME.match(principal_id, len(before))
    if found is None or not Patterns([after]).match(principal_id[found.end() :]):
        return ""
    return found.group()
