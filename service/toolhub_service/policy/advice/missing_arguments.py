"""Conditions that read an argument which some of the tools of their rule do not have.

`has(args.path) && …` over `core/fs.*` says nothing about `core/fs.copy`, whose paths are `source` and `destination`;
without `has`, the rule denies each call of such a tool. Neither is visible when the policy is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from toolhub_service.domain.tool import ArgumentRole, ToolSpec, canonical_capabilities
from toolhub_service.policy.condition_cost import cost_of
from toolhub_service.policy.document import PolicyDocument, Rule
from toolhub_service.policy.patterns import Patterns

_LISTED_MAX: Final = 5
_FACTS: Final = {
    ArgumentRole.PATH_READ: "call.reads",
    ArgumentRole.PATH_WRITE: "call.writes",
    ArgumentRole.URL: "call.urls",
    ArgumentRole.COMMAND: "call.commands",
}
"""The member of `call` that has the arguments of a role whatever their names."""


def find_missing_arguments(document: PolicyDocument, tools: Sequence[ToolSpec]) -> Iterator[tuple[str, str]]:
    """Yield the path in the document and a sentence for each argument that a rule's condition reads and that some of
    the rule's tools lack."""
    for index, rule in enumerate(document.rules):
        if not rule.when:
            continue
        concerned = [spec for spec in tools if _concerns(rule, spec)]
        for root, name in cost_of(rule.when).members:
            if root == "args" and name and (lacking := [spec for spec in concerned if not _takes(spec, name)]):
                yield f"rules[{index}].when", _describe(name, concerned, lacking)


def _concerns(rule: Rule, spec: ToolSpec) -> bool:
    if Patterns(rule.tools).match(spec.name) is None:
        return False
    wanted = Patterns(sorted(canonical_capabilities(rule.capabilities)))
    return not rule.capabilities or any(wanted.match(need) for need in canonical_capabilities(spec.capabilities))


def _takes(spec: ToolSpec, name: str) -> bool:
    """Return whether the schema names the argument, or takes any name at its root."""
    schema = spec.input_schema
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return True
    if any(word in schema for word in ("$ref", "allOf", "anyOf", "oneOf", "patternProperties")):
        return True
    return not properties and schema.get("additionalProperties") is not False


def _describe(name: str, concerned: Sequence[ToolSpec], lacking: Sequence[ToolSpec]) -> str:
    names = sorted(spec.name for spec in lacking)
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    problem = (
        f"`args.{name}` is no argument of {', '.join(names[:_LISTED_MAX])}{more}, which the rule names too: "
        "with `has` the rule does not apply to their calls, without it each of their calls is denied"
    )
    roles = {argument.role for spec in concerned for argument in spec.guarded if argument.name == name}
    if facts := sorted({_FACTS[role] for role in roles if role in _FACTS}):
        return f"{problem}. Read {' and '.join(f'`{fact}`' for fact in facts)} instead, which every tool fills"
    return f"{problem}. Name only tools that have it"
