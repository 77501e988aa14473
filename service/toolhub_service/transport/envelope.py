"""The contract's protovalidate rules (ids, sizes, counts), checked for every message before it is used.

For most messages a few comparisons, compiled from the rules in the descriptors, show that they comply. The others are
checked by protovalidate, which copies a message and takes five times as long; only protovalidate refuses one.

A session's message is checked call by call: a call that violates the contract is answered, and the others are not
affected. A violation that no single call causes (too many calls, a bad id to cancel) ends the session, as it ends any
other RPC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from buf.validate import validate_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.rpc import Layer, Method
from toolhub_service.transport.status import RpcFailure

if TYPE_CHECKING:
    import protovalidate

_ANYTHING, _LENGTH, _UTF8_LENGTH, _PATTERN, _ONE_OF, _RANGE, _MESSAGE, _MESSAGES, _UNCHECKED = range(9)
"""Kinds of rules for a value, in `_Rules.fields`."""
_UNKNOWN: Final = (_UNCHECKED, None, None, False)
_ENDLESS: Final = 1 << 63
# Patterns that mean the same to RE2, which protovalidate uses, and to `re`.
_PORTABLE: Final = re.compile(r"\^((?:\[[A-Za-z0-9._:@/+-]+\](?:\{\d+(?:,\d+)?\})?)+)\$")
# A predefined rule of the contract (rules.proto) that consists of a pattern only.
_MATCHES: Final = re.compile(r"!rule \|\| this\.matches\((?:'([^'\\]+)'|r'([^']+)')\)")
# Any number of characters except those of a list, which `re` writes otherwise when they are beyond U+00FF.
_ANY_BUT: Final = re.compile(r"\^(\[\^(?:\\x[0-9a-f]{2}|\\x\{[0-9a-f]+\}|-)+\])\*\$")
_BEYOND_LATIN_1: Final = re.compile(r"\\x\{([0-9a-f]+)\}")
_NUMBERS: Final = frozenset({"int32", "int64", "uint32", "uint64"})
_LENGTHS: Final = ((("string", "bytes"), "min_len", "max_len"), (("repeated",), "min_items", "max_items"))


class _Rules:
    """The rules of one type of message. A rule that is not understood here is left to protovalidate."""

    __slots__ = ("fields", "needed")

    def __init__(self) -> None:
        self.fields: dict[Any, tuple[int, Any, Any, bool]] = {}
        """(kind of rule, its two bounds, whether the field must be set), by the field's descriptor."""
        self.needed = 0
        """Number of fields that must be set."""


class RuleBook(dict[Any, _Rules]):
    """Rules by type of message, each compiled at its first use."""

    def __missing__(self, descriptor: Any) -> _Rules:
        rules = self[descriptor] = _Rules()
        if _is_marked(descriptor):
            rules.needed = _ENDLESS
        for field in descriptor.fields:
            kind, first, second, is_needed = self._compile_field(field)
            rules.needed += is_needed
            rules.fields[field] = kind, first, second, is_needed
        return rules

    def keeps(self, message: Message) -> bool:  # noqa: C901 - a function for each kind would be called for each field
        """Return whether the message certainly complies with every rule; if False, protovalidate must check it."""
        pending = [(message, self[message.DESCRIPTOR])]
        while pending:
            message, rules = pending.pop()
            needed = rules.needed
            for field, value in message.ListFields():
                kind, first, second, is_needed = rules.fields.get(field, _UNKNOWN)
                needed -= is_needed
                if kind == _LENGTH:
                    kept = first <= len(value) <= second
                elif kind == _PATTERN:
                    kept = first(value) is not None
                elif kind == _ONE_OF:
                    kept = value in first
                elif kind == _MESSAGE:
                    pending.append((value, first))
                    continue
                elif kind == _MESSAGES:
                    kept = len(value) <= second
                    pending.extend([(item, first) for item in value] if kept else ())
                elif kind == _UTF8_LENGTH:
                    kept = 4 * len(value) <= first or len(value.encode()) <= first
                elif kind == _RANGE:
                    kept = first <= value <= second
                else:
                    kept = kind == _ANYTHING
                if not kept:
                    return False
            if needed:
                return False
        return True

    def _compile_field(self, field: FieldDescriptor) -> tuple[int, Any, Any, bool]:
        """Return a field's rule as in `_Rules.fields`."""
        of_field = field.GetOptions().Extensions[validate_pb2.field]
        named = {rule.name: value for rule, value in of_field.ListFields() if rule.name not in {"required", "ignore"}}
        if len(named) <= 1:
            of_type, bounds = next(iter(named.items()), ("", None))
            limits = _limits(bounds) if isinstance(bounds, Message) else {}
            is_cel = bounds is not None and not isinstance(bounds, Message)
            found = None if is_cel else self._find_quick_check(field, of_type, limits)
            if found is None:
                # An empty list or map may comply with rules about it.
                may_be_empty = of_type in {"repeated", "map"} and not limits.keys() & {"min_items", "min_pairs"}
                found = _UNCHECKED, None, None, not is_cel and may_be_empty
        else:
            found = _UNCHECKED, None, None, False
        kind, first, second, holds_at_zero = found
        is_free_unset = field.has_presence or of_field.ignore == validate_pb2.IGNORE_IF_ZERO_VALUE or holds_at_zero
        return kind, first, second, of_field.required or not is_free_unset

    def _find_quick_check(
        self, field: FieldDescriptor, of_type: str, limits: dict[str, Any]
    ) -> tuple[int, Any, Any, bool] | None:
        """Return (kind of rule, its two bounds, whether zero is allowed); None for a rule that is not understood."""
        if not of_type and (field.message_type is None or not _has_rules(field.message_type, set())):
            return _ANYTHING, None, None, True
        of = field.message_type
        if of is None:
            return _value_held_to(field, of_type, limits)
        if of.GetOptions().map_entry or limits.keys() - {"max_items"}:
            return None
        if field.is_repeated:
            return _MESSAGES, self[of], limits.get("max_items", _ENDLESS), True
        return _MESSAGE, self[of], None, True


def _limits(bounds: Message) -> dict[str, Any]:
    """Return the rules of a type by name; a predefined pattern appears as a pattern."""
    limits: dict[str, Any] = {}
    for rule, value in bounds.ListFields():
        pattern = _predefined_pattern(rule) if rule.is_extension and value is True else ""
        limits["pattern" if pattern else rule.full_name if rule.is_extension else rule.name] = pattern or value
    return limits


def _predefined_pattern(rule: FieldDescriptor) -> str:
    """Return the pattern; empty where the rule is not of this kind."""
    cel = rule.GetOptions().Extensions[validate_pb2.predefined].cel
    found = _MATCHES.fullmatch(cel[0].expression) if len(cel) == 1 else None
    return "" if found is None else found[1] or found[2]


def _value_held_to(field: FieldDescriptor, of_type: str, limits: dict[str, Any]) -> tuple[int, Any, Any, bool] | None:
    names = limits.keys()
    if of_type == "string" and names == {"pattern"} and (portable := _PORTABLE.fullmatch(limits["pattern"])):
        match = re.compile(portable[1]).fullmatch
        return _PATTERN, match, None, match("") is not None
    if (
        of_type == "string"
        and names <= {"pattern", "min_len", "max_len"}
        and (listed := _ANY_BUT.fullmatch(limits.get("pattern", "")))
    ):
        refused = _BEYOND_LATIN_1.sub(lambda code: chr(int(code[1], 16)), listed[1])
        match = re.compile(f"{refused}{{{limits.get('min_len', 0)},{limits.get('max_len', '')}}}").fullmatch
        return _PATTERN, match, None, not limits.get("min_len")
    if of_type == "string" and names == {"max_bytes"}:
        return _UTF8_LENGTH, limits["max_bytes"], None, True
    for types, least, most in _LENGTHS:
        if of_type in types and names <= {least, most}:
            return _LENGTH, limits.get(least, 0), limits.get(most, _ENDLESS), not limits.get(least)
    if of_type == "enum" and field.enum_type and {"defined_only"} <= names <= {"defined_only", "not_in"}:
        allowed = {value.number for value in field.enum_type.values} - set(limits.get("not_in", ()))
        return _ONE_OF, allowed, None, 0 in allowed
    if of_type in _NUMBERS and names <= {"gte", "lte"}:
        lowest = limits.get("gte", -_ENDLESS)
        highest = limits.get("lte", 2 * _ENDLESS)
        return _RANGE, lowest, highest, lowest <= 0 <= highest
    return None


def _has_rules(descriptor: Descriptor, seen: set[Descriptor]) -> bool:
    """Return whether messages of this type have any rule, at any depth."""
    if descriptor in seen:
        return False
    seen.add(descriptor)
    if _is_marked(descriptor) or any(
        field.GetOptions().HasExtension(validate_pb2.field) for field in descriptor.fields
    ):
        return True
    return any(field.message_type is not None and _has_rules(field.message_type, seen) for field in descriptor.fields)


def _is_marked(descriptor: Descriptor) -> bool:
    """Return whether the message has rules besides those of its fields."""
    return descriptor.GetOptions().HasExtension(validate_pb2.message) or any(
        oneof.GetOptions().HasExtension(validate_pb2.oneof) for oneof in descriptor.oneofs
    )


_SHOWN_MAX = 5
_CALLS = "calls"
# Calls in one message of a session, as in the contract.
_CALLS_MAX = 256


class Envelope:
    """Validates messages."""

    def __init__(self) -> None:
        self.rules = RuleBook()
        self._validator: protovalidate.Validator | None = None

    def check(self, message: Message) -> None:
        """Validate with protovalidate. Raises RpcFailure INVALID_ARGUMENT with BadRequest field violations."""
        violations = self._violations(message)
        if violations:
            raise _malformed_request(violations)

    def _violations(self, message: Message, *, fail_fast: bool = False) -> list[protovalidate.Violation]:
        # Imported for the first message that needs it: 8 MB that many hubs never use.
        if self._validator is None:
            import protovalidate

            self._validator = protovalidate.Validator()
        return self._validator.collect_violations(message, fail_fast=fail_fast)

    def check_calls(self, message: pb.InvokeSessionRequest) -> dict[int, str]:
        """Return the violations by index of the call. Raises RpcFailure INVALID_ARGUMENT for the message itself."""
        if self.rules.keeps(message):
            return {}
        is_overfull = len(message.calls) > _CALLS_MAX  # else every one of thousands of calls would be validated first
        violations = self._violations(message, fail_fast=is_overfull)
        if not violations:
            return {}
        if is_overfull:
            raise _malformed_request(violations)
        by_call: dict[int, list[protovalidate.Violation]] = {}
        of_message: list[protovalidate.Violation] = []
        for violation in violations:
            place = _place(violation)
            (of_message if place is None else by_call.setdefault(place, [])).append(violation)
        if of_message:
            raise _malformed_request(of_message)
        return {place: _contract_broken("The call", _field_violations(found, 1)) for place, found in by_call.items()}


def _malformed_request(violations: Sequence[protovalidate.Violation]) -> RpcFailure:
    fields = _field_violations(violations)
    return RpcFailure(Reason.MALFORMED_REQUEST, _contract_broken("The request", fields), field_violations=fields)


def _contract_broken(what: str, fields: Iterable[tuple[str, str]]) -> str:
    return f"{what} is invalid: " + "; ".join(f"{path}: {text}" for path, text in fields)


def _field_violations(violations: Sequence[protovalidate.Violation], skip: int = 0) -> tuple[tuple[str, str], ...]:
    return tuple((_path(violation, skip), violation.proto.message) for violation in violations[:_SHOWN_MAX])


def _path(violation: protovalidate.Violation, skip: int) -> str:
    """Return a path such as `intent.tool`, without map keys, indexes and the first `skip` elements."""
    field = violation.proto.field
    return ".".join(element.field_name for element in field.elements[skip:]) if field else ""


def _place(violation: protovalidate.Violation) -> int | None:
    """Return the index of the call that causes the violation."""
    field = violation.proto.field
    first = field.elements[0] if field and field.elements else None
    if first is None or first.field_name != _CALLS or first.subscript is None or first.subscript.field != "index":
        return None
    return int(first.subscript.value)


class ValidationLayer(Layer):
    """Refuses with INVALID_ARGUMENT and BadRequest field violations; only toolhub's own messages have rules."""

    def __init__(self) -> None:
        self._envelope = Envelope()
        self._rules = self._envelope.rules

    def concerns(self, hook: str, method: Method) -> bool:
        """Sessions validate their calls themselves."""
        is_ours = method.service.startswith("toolhub.") and method.name != "InvokeSession"
        return super().concerns(hook, method) and is_ours

    def on_request(self, method: Method, state: None, message: Message) -> None:
        if not self._rules.keeps(message):
            self._envelope.check(message)
