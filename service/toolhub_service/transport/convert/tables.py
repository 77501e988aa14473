"""Messages and domain values whose fields have the same names: one conversion each, compiled at import.

A Timestamp `x` is the domain's `x_unix_ms`, a Duration `x` its `x_s`, and an enum uses the table of its `WireEnum`. All
other fields are the same on both sides, except those that are `renamed` and inner messages, which are `nested`. A field
without a counterpart is an error at import unless it is listed as `apart`, which code fills in: so no field is
forgotten, and nothing is sent that the contract has no field for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from toolhub_service.transport.convert.payload import WIRE_ENUMS, duration, timestamp

Wire = TypeVar("Wire", bound=Message)
Domain = TypeVar("Domain")


class Writer(Generic[Wire]):
    """Converts domain values to a message."""

    def __init__(
        self,
        wire: type[Wire],
        *sources: type,
        apart: Iterable[str] = (),
        renamed: Mapping[str, str] | None = None,
        nested: Mapping[str, Callable[[Any], Message]] | None = None,
    ) -> None:
        """A field is filled from its counterpart, a field or a property, in the first of `sources` that has it. By
        field of the message: `renamed` gives a counterpart with another name, `nested` the function that writes an
        inner message."""
        self._wire = wire
        self._fields: list[tuple[str, int, str, Callable[[Any], Any] | None]] = []
        left_out = set(apart)
        renamed = renamed or {}
        nested = nested or {}
        for field in wire.DESCRIPTOR.fields:
            if field.name in left_out:
                continue
            name = renamed.get(field.name) or _counterpart(field)
            places = [place for place, source in enumerate(sources) if _has(source, name)]
            if not places:
                raise TypeError(f"{field.full_name}: none of {sources} has {name}")
            write = nested.get(field.name)
            convert = _to_wire(field) if write is None else _convert_elements(write, is_repeated=field.is_repeated)
            self._fields.append((field.name, places[0], name, convert))

    def __call__(self, *values: object, **apart: Any) -> Wire:
        """Return the message of `values`, one for each of the sources, and of the `apart` fields."""
        for field, place, name, convert in self._fields:
            value = getattr(values[place], name)
            apart[field] = value if convert is None else convert(value)
        return self._wire(**apart)


class Reader(Generic[Domain]):
    """Converts a message to a domain value; for scalars and enums."""

    def __init__(self, domain: type[Domain], wire: type[Message], *, apart: Iterable[str] = ()) -> None:
        self._domain = domain
        self._fields: list[tuple[str, dict[int, Any] | None]] = []
        left_out = set(apart)
        known = wire.DESCRIPTOR.fields_by_name
        for name in domain.__annotations__:
            if name in left_out:
                continue
            if name not in known or known[name].message_type is not None or known[name].is_repeated:
                raise TypeError(f"{domain.__name__}.{name}: {wire.DESCRIPTOR.full_name} has no such scalar")
            of_enum = known[name].enum_type
            self._fields.append((name, None if of_enum is None else WIRE_ENUMS[of_enum.full_name].to_domain))

    def __call__(self, message: Message, **apart: Any) -> Domain:
        """Return the value, with the `apart` fields. Raises KeyError for an enum number that the domain does not
        know."""
        for name, members in self._fields:
            value = getattr(message, name)
            apart[name] = value if members is None else members[value]
        return self._domain(**apart)


def _has(source: type, name: str) -> bool:
    return name in source.__annotations__ or isinstance(getattr(source, name, None), property)


def _convert_elements(write: Callable[[Any], Message], *, is_repeated: bool) -> Callable[[Any], Any]:
    if is_repeated:
        return lambda values: [write(value) for value in values]
    return lambda value: None if value is None else write(value)


def _counterpart(field: Any) -> str:
    """Return the name of the domain's field for a field of a message."""
    of = field.message_type.full_name if field.message_type is not None else ""
    suffix = {"google.protobuf.Timestamp": "_unix_ms", "google.protobuf.Duration": "_s"}.get(of, "")
    return f"{field.name}{suffix}"


def _to_wire(field: Any) -> Callable[[Any], Any] | None:
    if field.enum_type is not None:
        to_wire = WIRE_ENUMS[field.enum_type.full_name].to_wire
        return (lambda members: [to_wire[member] for member in members]) if field.is_repeated else to_wire.__getitem__
    of = field.message_type.full_name if field.message_type is not None else ""
    return {"google.protobuf.Timestamp": timestamp, "google.protobuf.Duration": _duration}.get(of)


def _duration(span_s: float | None) -> Any:
    """Return the Duration; None where the value is unknown."""
    return None if span_s is None else duration(span_s)
