"""Describes errors in a value in words from which a model can repair it: at most five, in the hub's own words.

The engine's errors contain values and library text; only places, keywords and structured facts are used. A value is
shown when it is a scalar and its name does not indicate a secret, at most 64 characters of it. Of anyOf and oneOf the
branch that was most likely meant is explained, of items with the same error the first. A large value is cut before the
engine validates it, because the engine lists all errors; errors that the cut may have caused are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
import msgspec

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.domain.json import JsonValue
from toolhub_service.schema.branches import Branches, LikeliestBranch
from toolhub_service.schema.excerpt import Excerpt, cut
from toolhub_service.schema.rules import Rule, describe_rule

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
