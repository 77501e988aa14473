"""Describes errors in a value in words from which a model can repair it: at most five, in the hub's own words.

The engine's errors contain values and library text; only places, keywords and structured facts are used. A value is
shown when it is a scalar and its name does not indicate a secret, at most 64 characters of it. Of anyOf and oneOf the
branch that was most likely meant is explained, of items with the same error the first. A large value is cut before the
engine validates it, because the engine lists all errors; errors that the cut may have caused are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import jsonschema_rs
import msgspec

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.canonical_json import measure
from toolhub_service.schema.references import MAX_INSTANCE_DEPTH
from toolhub_service.schema.rules import Rule, describe_rule, listing, nearest, null_last, pointer, subject, type_hint

# A part of a large value that can be validated like the whole, with every place that was cut.

Path = tuple[str | int, ...]

_MAX_ITEMS: Final = 32
_MAX_MEMBERS: Final = 256


@dataclass(slots=True)
class Excerpt:
    value: JsonValue
    cuts: set[Path] = field(default_factory=set)
    """Paths of the arrays and objects that are incomplete, and of all that contain them."""

    def is_cut_at(self, path: Path) -> bool:
        """Return whether the value at `path` is incomplete."""
        return path in self.cuts


def cut(value: JsonValue, max_values: int) -> Excerpt:
    """Return `value` itself when it has at most `max_values` values, otherwise about that many of it, every level
    cut."""
    excerpt = Excerpt(value)
    if measure(value, MAX_INSTANCE_DEPTH)[0] > max_values:
        excerpt.value = _Cutter(max_values, excerpt.cuts).part(value, ())
    return excerpt


class _Cutter:
    def __init__(self, max_values: int, cuts: set[Path]) -> None:
        self._left = max_values
        self._cuts = cuts

    def part(self, value: Any, path: Path) -> Any:
        self._left -= 1
        if isinstance(value, dict):
            names = list(value)[: max(0, min(self._left, _MAX_MEMBERS))]
            kept: Any = {name: self.part(value[name], (*path, name)) for name in names}
        elif isinstance(value, list | tuple):
            items = value[: max(0, min(self._left, _MAX_ITEMS))]
            kept = [self.part(item, (*path, position)) for position, item in enumerate(items)]
        else:
            return value
        if len(kept) < len(value):
            self._cuts.update(path[:length] for length in range(len(path) + 1))
        return kept


# Which alternative of anyOf or oneOf was most likely meant (the idea of `best_match` in python-jsonschema).
#
# 1. A tag: when branches fail on `const` or `enum` of one of the value's own properties, those whose tag fits are
#    meant; when no branch's tag fits, the tag itself is what is wrong.
# 2. When every branch wants another type, the types are what is wrong.
# 3. Otherwise the branch with the fewest errors, and among equals the one that got deepest.

_Errors = list[jsonschema_rs.ValidationError]
_TAGS: Final = (jsonschema_rs.ValidationErrorKind.Constant, jsonschema_rs.ValidationErrorKind.Enum)


class LikeliestBranch(msgspec.Struct, frozen=True):
    """The errors of the branch that was most likely meant."""

    errors: _Errors


class Branches:
    """The failed branches of one anyOf or oneOf; a branch is the list of its errors."""

    def __init__(self, error: jsonschema_rs.ValidationError, branches: list[_Errors], root: dict[str, Any]) -> None:
        self._rule = Rule(error, root)
        self._keyword = error.kind.name
        self._branches = branches
        self._depth = len(error.instance_path)

    def likeliest(self) -> LikeliestBranch | Violation:
        fitting = [branch for branch in self._branches if not self._tag_errors(branch)]
        if not fitting:
            return self._wrong_tag()
        typed = [branch for branch in fitting if self._wanted_types(branch) is None]
        if typed:
            return LikeliestBranch(min(typed, key=lambda branch: (len(branch), -_reach(branch))))
        return self._wrong_type(fitting)

    def _tag_errors(self, branch: _Errors) -> _Errors:
        depth = self._depth + 1
        return [error for error in branch if len(error.instance_path) == depth and isinstance(error.kind, _TAGS)]

    def _wrong_tag(self) -> LikeliestBranch | Violation:
        """Return the violation of the one tag property when no branch's tag fits; the likeliest branch when tags
        differ."""
        first = [self._tag_errors(branch)[0] for branch in self._branches]
        if len({tuple(error.instance_path) for error in first}) != 1:
            return LikeliestBranch(min(self._branches, key=lambda branch: (len(branch), -_reach(branch))))
        rule = Rule(first[0], {})
        options = [option for error in first for option in _accepted(error)][:20]
        guess = None if rule.secret or isinstance(rule.value, dict | list) else nearest(rule.value, options)
        return Violation(
            path=pointer(rule.path),
            keyword=self._keyword,
            message=f"{subject(rule.path)} must be one of {listing(options)}, not {rule.got()}.",
            expected=options,
            hint="" if guess is None else f"Did you mean {listing([guess])}?",
        )

    def _wanted_types(self, branch: _Errors) -> list[str] | None:
        for error in branch:
            kind = error.kind
            if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type) and len(error.instance_path) == self._depth:
                return kind.types
        return None

    def _wrong_type(self, branches: list[_Errors]) -> Violation:
        types = null_last(list(dict.fromkeys(name for branch in branches for name in self._wanted_types(branch) or ())))
        expected: JsonValue = list(types)
        return Violation(
            path=pointer(self._rule.path),
            keyword=self._keyword,
            message=f"{subject(self._rule.path)} must be {' or '.join(types)}, not {self._rule.got()}.",
            expected=expected,
            hint=type_hint(self._rule, types),
        )


def _accepted(error: jsonschema_rs.ValidationError) -> list[Any]:
    facts = error.kind.as_dict()
    return [facts["expected_value"]] if "expected_value" in facts else list(facts["options"])


def _reach(branch: _Errors) -> int:
    return max((len(error.instance_path) for error in branch), default=0)


MAX_VIOLATIONS: Final = 5
_STILL_TRUE_WHEN_CUT: Final = frozenset({"type", "additionalProperties", "maxItems", "maxProperties", "propertyNames"})
_MAX_NESTING: Final = 8


def explain(
    engine: jsonschema_rs.Validator, document: dict[str, Any], value: JsonValue, max_values: int
) -> tuple[Violation, ...]:
    """Return at most five violations of an invalid `value`, outermost first; never empty.

    `document` is the schema, for hints; empty when places in it are unreliable. `max_values` limits how much of `value`
    is checked.
    """
    excerpt = cut(value, max(max_values, 8))
    errors = [error for error in engine.iter_errors(excerpt.value) if not _is_caused_by_cutting(error, excerpt)]
    alike: dict[tuple[object, ...], list[jsonschema_rs.ValidationError]] = {}
    for error in sorted(errors, key=lambda error: len(error.instance_path)):
        alike.setdefault(_rule_and_place(error), []).append(error)
    found: dict[tuple[str, str, str], Violation] = {}
    for group in list(alike.values())[:MAX_VIOLATIONS]:
        for violation in _describe(group[0], document, _MAX_NESTING):
            found.setdefault(
                (violation.path, violation.keyword, violation.message), _with_others(violation, len(group) - 1, excerpt)
            )
    return tuple(found.values())[:MAX_VIOLATIONS] or (_somewhere(),)


def too_deep(max_depth: int) -> Violation:
    return Violation(
        path="",
        keyword="depth",
        message=f"The value is nested deeper than {max_depth} levels, the most this schema is checked for.",
        expected=max_depth,
        hint="Send a flatter value.",
    )


def too_large(values: int, max_values: int) -> Violation:
    return Violation(
        path="",
        keyword="size",
        message=f"The value has {values:,} values inside; this schema is checked for at most {max_values:,}.",
        expected=max_values,
        hint="Split it into several calls.",
    )


def not_json() -> Violation:
    return Violation(
        path="",
        keyword="type",
        message="The value is not made of JSON types only (null, boolean, number, string, array, object).",
        expected="JSON",
    )


def _somewhere() -> Violation:
    return Violation(
        path="",
        keyword="schema",
        message="The value does not match the schema, and is too large to say where.",
        hint="Send fewer items in one call to learn which one is wrong.",
    )


def _describe(error: jsonschema_rs.ValidationError, root: dict[str, Any], nesting: int) -> Iterator[Violation]:
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.PropertyNames):
        yield describe_rule(Rule(error, root), name_error=kind.error)
    elif nesting and isinstance(kind, _ALTERNATIVES):
        likeliest = Branches(error, kind.context, root).likeliest()
        if isinstance(likeliest, LikeliestBranch):
            for nested in likeliest.errors:
                yield from _describe(nested, root, nesting - 1)
        else:
            yield likeliest
    else:
        yield describe_rule(Rule(error, root))


_ALTERNATIVES: Final = (jsonschema_rs.ValidationErrorKind.AnyOf, jsonschema_rs.ValidationErrorKind.OneOfNotValid)


def _rule_and_place(error: jsonschema_rs.ValidationError) -> tuple[object, ...]:
    """Return a key that is equal for all items of an array with the same error: one of them is reported."""
    place = ("*" if isinstance(token, int) else token for token in error.instance_path)
    own = error.kind.as_dict().get("property") if error.kind.name == "required" else None
    return (*error.schema_path, None, own, *place)


def _with_others(violation: Violation, others: int, excerpt: Excerpt) -> Violation:
    if not others:
        return violation
    count = f"at least {others:,}" if excerpt.cuts else f"{others:,}"
    return msgspec.structs.replace(
        violation, hint=f"{violation.hint} The same is wrong in {count} more items.".lstrip()
    )


def _is_caused_by_cutting(error: jsonschema_rs.ValidationError, excerpt: Excerpt) -> bool:
    if error.kind.name in _STILL_TRUE_WHEN_CUT:
        return False
    return excerpt.is_cut_at(tuple(error.instance_path))
