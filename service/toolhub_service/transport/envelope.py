"""The contract's protovalidate rules (ids, sizes, counts), which every message is held to before anything reads it.

A message of a session is judged call by call: one that breaks the contract is answered, and costs its neighbours
nothing. What no call can be blamed for (too many calls, a bad id to cancel) ends the session, as it ends any other RPC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import grpc
import protovalidate
from google.protobuf.message import Message

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.transport.plain_calls import CALLS_MAX, are_plain, is_plain
from toolhub_service.transport.status import RpcFailure

_SHOWN_MAX = 5
_CALLS = "calls"
_CALLS_BY_THEMSELVES = (pb.InvokeRequest, pb.InvokeStreamRequest)


class Envelope:
    """Judges messages."""

    def __init__(self) -> None:
        self._validator = protovalidate.Validator()

    def check(self, message: Message) -> None:
        """Raises RpcFailure INVALID_ARGUMENT with BadRequest field violations."""
        if isinstance(message, _CALLS_BY_THEMSELVES) and is_plain(message):
            return
        violations = self._validator.collect_violations(message)
        if violations:
            raise _malformed(violations)

    def check_calls(self, message: pb.InvokeSessionRequest) -> dict[int, str]:
        """What is wrong with which call, by place. Raises RpcFailure INVALID_ARGUMENT for the message itself."""
        if are_plain(message):
            return {}
        is_overfull = len(message.calls) > CALLS_MAX  # every call of thousands would be judged first
        violations = self._validator.collect_violations(message, fail_fast=is_overfull)
        if not violations:
            return {}
        if is_overfull:
            raise _malformed(violations)
        by_call: dict[int, list[protovalidate.Violation]] = {}
        of_message: list[protovalidate.Violation] = []
        for violation in violations:
            place = _place(violation)
            (of_message if place is None else by_call.setdefault(place, [])).append(violation)
        if of_message:
            raise _malformed(of_message)
        return {place: _told("The call", _shown(found, 1)) for place, found in by_call.items()}


def _malformed(violations: Sequence[protovalidate.Violation]) -> RpcFailure:
    fields = _shown(violations)
    return RpcFailure(
        grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST", _told("The request", fields), field_violations=fields
    )


def _told(what: str, fields: Iterable[tuple[str, str]]) -> str:
    return f"{what} breaks its contract: " + "; ".join(f"{path}: {text}" for path, text in fields)


def _shown(violations: Sequence[protovalidate.Violation], skip: int = 0) -> tuple[tuple[str, str], ...]:
    return tuple((_path(violation, skip), violation.proto.message) for violation in violations[:_SHOWN_MAX])


def _path(violation: protovalidate.Violation, skip: int) -> str:
    """`intent.tool`; map keys and indexes are left out, and so are the first `skip` elements."""
    field = violation.proto.field
    return ".".join(element.field_name for element in field.elements[skip:]) if field else ""


def _place(violation: protovalidate.Violation) -> int | None:
    """The place of the call that is to blame."""
    field = violation.proto.field
    first = field.elements[0] if field and field.elements else None
    if first is None or first.field_name != _CALLS or first.subscript is None or first.subscript.field != "index":
        return None
    return int(first.subscript.value)
