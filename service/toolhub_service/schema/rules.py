"""Describes one violated rule in one sentence, with what would have been accepted and the likeliest repair."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import jsonschema_rs

from toolhub_service.domain.errors.failure import Violation
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.schema.references import beside_references, schema_at, step_of

# Names, values and places in words, short enough for a message.

_MAX_SHOWN: Final = 64
_MAX_POINTER: Final = 256
_MAX_NAMES: Final = 200
_TYPE_NAMES: Final = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def pointer(path: Iterable[str | int]) -> str:
    """Return an RFC 6901 pointer, cut at 256 characters."""
    text = "".join(step_of(str(token)) for token in path)
    return text if len(text) <= _MAX_POINTER else text[: _MAX_POINTER - 1] + "…"


def subject(path: Iterable[str | int]) -> str:
    return f"`{readable(where)}`" if (where := pointer(path)) else "The value"


def shorten(text: str, limit: int = _MAX_SHOWN) -> str:
    shown = readable(text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def readable(text: str) -> str:
    """Escape line breaks, control and invisible characters: names in messages may be untrusted."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def nearest(wanted: object, known: Iterable[object]) -> Any:
    """Return the known name or value closest to `wanted`, ignoring case; None when nothing is close."""
    # difflib compares with each of them: an enum with thousands would take seconds.
    names = {str(name).casefold(): name for name in list(known)[:_MAX_NAMES]}
    found = difflib.get_close_matches(shorten(str(wanted)).casefold(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def listing(values: list[Any]) -> str:
    """Return JSON texts, each at most 64 characters, joined by commas."""
    return ", ".join(shorten(json.dumps(value, ensure_ascii=False)) for value in values)


def type_name(value: Any) -> str:
    return "null" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


_MAX_OPTIONS: Final = 20
_MAX_EXPECTED: Final = 2000
_NO_PROPERTY: Final = "has no property"
Wording = tuple[str, JsonValue, str]
"""(what the value must be or must not do, which continues "<subject> …"; expected; hint)."""


class Rule:
    """An error of the engine with what the hub may say about it."""

    __slots__ = ("error", "facts", "path", "root", "secret")

    def __init__(self, error: jsonschema_rs.ValidationError, root: dict[str, Any]) -> None:
        self.error = error
        self.root = root
        self.path = error.instance_path
        self.secret = _has_secret_name(error.instance_path)
        self.facts: dict[str, Any] = error.kind.as_dict()

    @property
    def value(self) -> Any:
        return self.error.instance

    def got(self) -> str:
        """Return the value as it may be shown: its type, and the value itself when it is a short public scalar."""
        value = self.value
        name = type_name(value)
        # The message omits the value, because it goes to models and logs.
        if value is None or self.secret or isinstance(value, dict | list):
            return name
        return f"{name} {listing([value])}"

    def parent_schema(self) -> dict[str, Any]:
        """Return the schema object with the violated keyword; empty when it is unknown."""
        return schema_at(self.root, self.error.schema_path[:-1])


def describe_rule(rule: Rule, name_error: jsonschema_rs.ValidationError | None = None) -> Violation:
    """Return the violation of the rule; `name_error` is what was wrong with a property's name."""
    keyword = rule.error.kind.name
    if name_error is not None:
        wording = _property_name(name_error)
    else:
        wording = _FIXED.get(keyword) or _WORDINGS.get(keyword, _other)(rule)
    text, expected, hint = wording
    message = f"{subject(rule.path)} {text}."
    if not rule.path and text.startswith(_NO_PROPERTY):
        message = f"Unknown property{text.removeprefix(_NO_PROPERTY)}."
    return Violation(pointer(rule.path), keyword, message, shorten_expected(expected), hint)


def _type(rule: Rule) -> Wording:
    types = null_last(rule.facts["types"])
    expected: JsonValue = types[0] if len(types) == 1 else types
    return f"must be {' or '.join(types)}, not {rule.got()}", expected, type_hint(rule, types)


def null_last(types: list[str]) -> list[str]:
    """Return the types with null last; the engine sorts them by name."""
    # "string or null" reads better than the reverse, and null is rarely meant.
    return sorted(types, key=lambda name: name == "null")


def type_hint(rule: Rule, types: list[str]) -> str:
    """Return the usual repair for a value that is not one of `types`."""
    value = rule.value
    if isinstance(value, str):
        text = value.strip()
        if ("object" in types and text[:1] == "{") or ("array" in types and text[:1] == "["):
            return "Send the JSON itself, not a string that holds it."
        if _is_number(text) and {"integer", "number"} & set(types):
            return "Send the number without quotes."
        if text.lower() in ("true", "false") and "boolean" in types:
            return "Send true or false without quotes."
    if value is None:
        return "Leave the property out instead of sending null."
    if "array" in types and not isinstance(value, dict | list):
        return "Send an array, even for one item."
    return ""


def _enum(rule: Rule) -> Wording:
    options: list[Any] = rule.facts["options"]
    shown = options[:_MAX_OPTIONS]
    more = f" (the first {_MAX_OPTIONS} of {len(options)})" if len(options) > _MAX_OPTIONS else ""
    text = f"must be one of {listing(shown)}{more}, not {rule.got()}"
    hint = "" if rule.secret or isinstance(rule.value, dict | list) else _did_you_mean(nearest(rule.value, options))
    return text, shown, hint


def _const(rule: Rule) -> Wording:
    expected = rule.facts["expected_value"]
    return f"must be {listing([expected])}, not {rule.got()}", expected, ""


def word_missing_property(rule: Rule) -> Wording:
    name = rule.facts["property"]
    declared = declaration_of(rule, name)
    facts: dict[str, JsonValue] = {key: declared[key] for key in ("type", "enum", "default") if key in declared}
    if isinstance(declared.get("description"), str):
        facts["description"] = shorten(declared["description"].strip(), 200)
    parts = [f"of type {facts['type']}"] if isinstance(facts.get("type"), str) else []
    if "default" in facts:
        parts.append(f"default {listing([facts['default']])}")
    if "description" in facts:
        parts.append(str(facts["description"]).rstrip("."))
    hint = f"Add `{shorten(name)}`" + (": " + "; ".join(parts) if parts else "") + "."
    return f"lacks the required property `{shorten(name)}`", {"property": name, **facts}, hint


def _additional(rule: Rule) -> Wording:
    unknown: list[str] = rule.facts["unexpected"]
    declared = [name for name in rule.parent_schema().get("properties", {}) if isinstance(name, str)]
    present = rule.value if isinstance(rule.value, dict) else {}
    guesses = [(name, nearest(name, [known for known in declared if known not in present])) for name in unknown[:5]]
    hints = [
        (f"`{shorten(name)}` → " if unknown[1:] else "") + f"`{shorten(guess)}`" for name, guess in guesses if guess
    ]
    names = ", ".join(f"`{shorten(name)}`" for name in unknown[:5]) + (" and more" if len(unknown) > 5 else "")
    hint = f"Did you mean {', '.join(hints)}?" if hints else "Leave it out."
    return f"{_NO_PROPERTY} {names}", declared[:_MAX_OPTIONS], hint


def _property_name(error: jsonschema_rs.ValidationError) -> Wording:
    name = shorten(str(error.instance))
    rule_name = error.kind.name
    return f"has a property whose name breaks `{rule_name}`: `{name}`", _limit(error.kind.as_dict()), ""


def _limit_wording(text: str) -> Callable[[Rule], Wording]:
    def wording(rule: Rule) -> Wording:
        limit = _limit(rule.facts)
        return f"{text.format(limit)}, not {rule.got()}", limit, ""

    return wording


def _count_wording(text: str, counted: str) -> Callable[[Rule], Wording]:
    def wording(rule: Rule) -> Wording:
        limit = _limit(rule.facts)
        return f"{text.format(limit)} {counted}, not {len(rule.value):,}", limit, ""

    return wording


def _pattern(rule: Rule) -> Wording:
    pattern = shorten(rule.facts["pattern"], 200)
    return f"must match the pattern {pattern}, not {rule.got()}", pattern, ""


def _format(rule: Rule) -> Wording:
    return f"must be a {rule.facts['format']}, not {rule.got()}", rule.facts["format"], ""


def _one_of(rule: Rule) -> Wording:
    fitting = [position for position, errors in enumerate(rule.facts.get("context", ())) if not errors]
    text = "matches several alternatives, and must match exactly one"
    return (
        text,
        None,
        (f"Alternatives {listing(list(fitting))} match: change the value so that it matches one of them only."),
    )


def _other(rule: Rule) -> Wording:
    return f"breaks the rule `{rule.error.kind.name}`", _limit(rule.facts), ""


_WORDINGS: Final[dict[str, Callable[[Rule], Wording]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": word_missing_property,
    "additionalProperties": _additional,
    "unevaluatedProperties": _additional,
    "minimum": _limit_wording("must be at least {}"),
    "maximum": _limit_wording("must be at most {}"),
    "exclusiveMinimum": _limit_wording("must be more than {}"),
    "exclusiveMaximum": _limit_wording("must be less than {}"),
    "multipleOf": _limit_wording("must be a multiple of {}"),
    "minLength": _count_wording("must have at least {}", "characters"),
    "maxLength": _count_wording("must have at most {}", "characters"),
    "minItems": _count_wording("must have at least {}", "items"),
    "maxItems": _count_wording("must have at most {}", "items"),
    "minProperties": _count_wording("must have at least {}", "properties"),
    "maxProperties": _count_wording("must have at most {}", "properties"),
    "pattern": _pattern,
    "format": _format,
    "oneOf": _one_of,
}


_FIXED: Final[dict[str, Wording]] = {
    "unevaluatedItems": ("has more items than the schema describes", None, "Leave the last ones out."),
    "additionalItems": ("has more items than the schema describes", None, "Leave the last ones out."),
    "uniqueItems": ("must not contain an item twice", "unique items", "Send each item once."),
    "falseSchema": ("is not accepted here", None, "Leave it out."),
    "not": ("is ruled out by `not`", None, "Change or leave out what the schema's `not` names."),
    "contains": ("has too few or too many items that match `contains`", None, ""),
}


def shorten_expected(expected: JsonValue) -> JsonValue:
    """Return facts from a schema of up to 256 KiB, where they are short enough to be read."""
    if len(json.dumps(expected)) <= _MAX_EXPECTED:
        return expected
    if isinstance(expected, dict):
        return {key: value for key, value in expected.items() if len(json.dumps(value)) <= _MAX_EXPECTED // 4}
    return None


def _limit(facts: dict[str, Any]) -> JsonValue:
    limit = facts.get("limit", facts.get("multiple_of"))
    return limit if limit is None or isinstance(limit, int | float | str) else float(limit)


def declaration_of(rule: Rule, name: str) -> dict[str, Any]:
    properties = rule.parent_schema().get("properties", {})
    declared = properties.get(name) if isinstance(properties, dict) else None
    return beside_references(rule.root, declared)


def _did_you_mean(guess: Any) -> str:
    return "" if guess is None else f"Did you mean {listing([guess])}?"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_secret_name(path: Iterable[str | int]) -> bool:
    """Return whether any name on the path to a value indicates a secret."""
    return any(isinstance(name, str) and is_secret_name(name) for name in path)
