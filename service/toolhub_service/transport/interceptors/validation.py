"""The envelope is held to the contract's protovalidate rules (ids, sizes, counts) before anything reads it."""

from __future__ import annotations

from typing import Any

import grpc
import protovalidate
from google.protobuf.message import Message

from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method
from toolhub_service.transport.status import RpcFailure

_SHOWN_MAX = 5


class ValidationLayer(Layer):
    """INVALID_ARGUMENT with BadRequest field violations; only toolhub's own messages have rules."""

    def __init__(self) -> None:
        self._validator = protovalidate.Validator()

    def received(self, method: Method, state: Any, message: Any) -> None:
        if not method.service.startswith("toolhub.") or not isinstance(message, Message):
            return
        violations = self._validator.collect_violations(message)
        if violations:
            fields = tuple((_path(violation), violation.proto.message) for violation in violations[:_SHOWN_MAX])
            raise RpcFailure(
                grpc.StatusCode.INVALID_ARGUMENT,
                "MALFORMED_REQUEST",
                "The request breaks its contract: " + "; ".join(f"{path}: {text}" for path, text in fields),
                field_violations=fields,
            )


def _path(violation: protovalidate.Violation) -> str:
    """`intent.tool`; map keys and indexes are left out."""
    field = violation.proto.field
    return ".".join(element.field_name for element in field.elements) if field else ""
