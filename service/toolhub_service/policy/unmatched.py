"""Names in a policy that fit nothing known: a misspelt tool in a DENY rule forbids nothing, and says nothing.

They are no errors, for a policy may speak of tools, principals and capabilities that are to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from toolhub_service.policy.document import PolicyDocument
from toolhub_service.policy.patterns import Pattern

_NEAR = 0.6
"""Likeness of a suggestion, as difflib counts it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a policy can speak of; an empty set says that nobody knows, and judges nothing."""

    tools: frozenset[str]
    capabilities: frozenset[str]
    principals: frozenset[str]
    unread: frozenset[str] = frozenset()
    """Namespaces of sources whose tools are not known."""


def unmatched(document: PolicyDocument, known: Known) -> Iterator[tuple[str, str]]:
    """Path and sentence of each pattern that fits nothing, in the order of the file's sections."""
    tools = _Names("tool", known.tools, known.unread)
    capabilities = _Names("capability", known.capabilities)
    principals = _Names("principal", known.principals)
    for index, grant in enumerate(document.grants):
        yield from capabilities.strange(f"grants[{index}].capabilities", grant.capabilities)
    for index, rule in enumerate(document.rules):
        yield from capabilities.strange(f"rules[{index}].capabilities", rule.capabilities)
        yield from principals.strange(f"rules[{index}].approval.approvers", rule.approval.approvers)
    for section in ("rules", "limits", "egress"):
        for index, entry in enumerate(getattr(document, section)):
            yield from tools.strange(f"{section}[{index}].tools", entry.tools)
    for section in ("grants", "roles", "rules", "limits", "egress"):
        for index, entry in enumerate(getattr(document, section)):
            yield from principals.strange(f"{section}[{index}].principals", entry.principals)
    yield from principals.strange("impersonate", document.impersonate)


class _Names:
    """The known names of one kind; what was asked once is remembered, for rules repeat themselves."""

    def __init__(self, kind: str, names: frozenset[str], unread: frozenset[str] = frozenset()) -> None:
        self._kind = kind
        self._names = names
        self._unread = unread
        self._fits: dict[str, bool] = {}

    def strange(self, path: str, patterns: Iterable[str]) -> Iterator[tuple[str, str]]:
        for index, text in enumerate(patterns):
            if self._names and not self._fit(text):
                yield f"{path}[{index}]", f"`{text}` fits no {self._kind} that is known{self._near(text)}"

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
