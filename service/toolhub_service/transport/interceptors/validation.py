"""The envelope is held to the contract's rules before anything reads it; a session judges its calls itself."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.transport.envelope import Envelope
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method


class ValidationLayer(Layer):
    """INVALID_ARGUMENT with BadRequest field violations; only toolhub's own messages have rules."""

    def __init__(self) -> None:
        self._envelope = Envelope()

    def received(self, method: Method, state: Any, message: Any) -> None:
        if not method.service.startswith("toolhub.") or not isinstance(message, Message):
            return
        if not isinstance(message, pb.InvokeSessionRequest):
            self._envelope.check(message)
