"""Names in a policy that match nothing known: a misspelt tool in a DENY rule forbids nothing, without any sign.

They are not errors, because a policy may name tools, principals and capabilities that do not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

import msgspec

from toolhub_service.policy.document import PolicyDocument
from toolhub_service.policy.patterns import Pattern
from toolhub_service.policy.selectors import find_unmatched_selectors
from toolhub_service.policy.tenants import PLACEHOLDER

# Minimum similarity of a suggestion, as difflib measures it.
_NEAR = 0.6


class Known(msgspec.Struct, frozen=True):
    """The names that a policy can use; an empty set means that they are unknown, and matches are not checked."""

    tools: frozenset[str]
    capabilities: frozenset[str]
    principals: frozenset[str]
    unread: frozenset[str] = frozenset()
    """Namespaces of sources whose tools are not known."""
    issuers: frozenset[str] | None = None
    """Issuers whose tokens are accepted; None means that they are unknown."""


def find_unmatched_names(document: PolicyDocument, known: Known) -> Iterator[tuple[str, str]]:
    """Yield the path and a sentence for each pattern that matches nothing, in the order of the file's sections."""
    tools = _Names("tool", known.tools, known.unread)
    capabilities = _Names("capability", known.capabilities)
    principals = _Names("principal", known.principals)
    for index, grant in enumerate(document.grants):
        yield from capabilities.strange(f"grants[{index}].capabilities", grant.capabilities)
    for index, rule in enumerate(document.rules):
        yield from capabilities.strange(f"rules[{index}].capabilities", rule.capabilities)
    for section in ("rules", "limits", "egress"):
        for index, entry in enumerate(getattr(document, section)):
            yield from tools.strange(f"{section}[{index}].tools", entry.tools)
    yield from find_unmatched_selectors(document, known.issuers, known.principals, principals.problem)
    # A misspelt source would stay visible to every tenant.
    namespaces = {tool.partition("/")[0] for tool in known.tools}
    sources = _Names("source", frozenset(namespaces | known.unread) if known.tools else frozenset())
    for index, tenant in enumerate(document.tenants):
        if tenant.name != PLACEHOLDER:
            yield from principals.strange(f"tenants[{index}].principals", tenant.principals)
        yield from sources.strange(f"tenants[{index}].sources", tenant.sources)


class _Names:
    """The known names of one kind; results are kept, because rules repeat names."""

    def __init__(self, kind: str, names: frozenset[str], unread: frozenset[str] = frozenset()) -> None:
        self._kind = kind
        self._names = names
        self._unread = unread
        self._fits: dict[str, bool] = {}

    def strange(self, path: str, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
        for index, text in enumerate(patterns):
            if problem := self.problem(text):
                yield f"{path}[{index}]", problem

    def problem(self, text: str) -> str:
        """Return why a pattern matches nothing; empty when it matches or the names are unknown."""
        is_strange = self._names and not self._fit(text)
        return f"`{text}` matches no known {self._kind}{self._near(text)}" if is_strange else ""

    def _fit(self, text: str) -> bool:
        if text not in self._fits:
            pattern = Pattern(text)
            namespace = text.partition("/")[0]
            self._fits[text] = (
                text in self._names
                or (not pattern.is_exact and any(map(pattern.matches, self._names)))
                or any(map(Pattern(namespace).matches, self._unread))
            )
        return self._fits[text]

    def _near(self, text: str) -> str:
        near = get_close_matches(text, self._names, n=1, cutoff=_NEAR)
        return f"; did you mean `{near[0]}`?" if near else ""
