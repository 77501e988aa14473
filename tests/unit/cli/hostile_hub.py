"""A hub whose every answer is hostile: each text of it controls a terminal, hides something or imitates a line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from toolhub.v1 import (
    approval_service_pb2,
    artifact_service_pb2,
    audit_service_pb2,
    credential_service_pb2,
    job_service_pb2,
    registry_service_pb2,
    tool_service_pb2,
)

FORGED: Final = "FORGED-LINE"
ACTING: Final = (
    *("\x1b]0;", "\x1b[2J", "\x1b[8m", "\x9b2J", "\x07", "\x08", "\x7f", "\x85"),
    *("\u202e", "\u2066", "\u061c", "\u200f", "\u200b", "\u2028", "\u2029", "\U000e0041"),
)
"""What must not reach a terminal before `!`, which follows each of them."""
HOSTILE: Final = f"a{''.join(f'{each}!' for each in ACTING)}\n{FORGED}  APPROVED\r\n{FORGED} b"

_MODULES: Final = (
    *(approval_service_pb2, artifact_service_pb2, audit_service_pb2, credential_service_pb2),
    *(job_service_pb2, registry_service_pb2, tool_service_pb2),
)
_DEPTH_MAX: Final = 6
_SCHEMA: Final = {
    "type": "object",
    "required": [HOSTILE],
    "properties": {HOSTILE: {"type": "string", "description": HOSTILE, "enum": [HOSTILE], "default": HOSTILE}},
}


def fill(message: Message, depth: int = 0) -> Message:
    """Set every field; returns the message."""
    for field in message.DESCRIPTOR.fields:
        if field.name in ("next_page_token", "revealed_args_json", "result_struct"):
            continue
        if field.containing_oneof is not None and field.containing_oneof.fields[0] is not field:
            continue
        _fill_field(message, field, depth)
    return message


def _fill_field(message: Any, field: Any, depth: int) -> None:
    own = getattr(message, field.name)
    if field.message_type is None:
        value = _value(field)
        own.append(value) if field.is_repeated else setattr(message, field.name, value)
    elif field.message_type.GetOptions().map_entry:
        key, held = field.message_type.fields
        if held.message_type is None:
            own[_value(key)] = _value(held)
    elif field.message_type.full_name == "google.protobuf.Struct":
        own.update({HOSTILE: HOSTILE})
    elif field.message_type.full_name.startswith("google.protobuf."):
        own.FromMilliseconds(1_700_000_000_000 if "Timestamp" in field.message_type.name else 1_500)
    elif depth < _DEPTH_MAX:
        fill(own.add() if field.is_repeated else own, depth + 1)
        if not field.is_repeated:
            own.SetInParent()


def _value(field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return "" if field.name == "diff" else HOSTILE
    if field.type == field.TYPE_BYTES:
        if not field.name.endswith("_json"):
            return HOSTILE.encode()
        schema = _SCHEMA if "schema" in field.name else {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}], "text": HOSTILE}
        return json.dumps(schema).encode()
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values[1].number
    return field.type == field.TYPE_BOOL or 1


class Handlers(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self._methods: dict[str, MethodDescriptor] = {
            f"/{service.full_name}/{method.name}": method
            for module in _MODULES
            for service in module.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }
        self.adjust: dict[str, Any] = {}
        """Changes an answer, by the name of its type."""
        self.refuses = False
        self.holds = ""
        """The method that never answers."""
        self.stop: Callable[[], object] = lambda: None
        self._is_held, self._is_over = threading.Event(), threading.Event()

    def stop_when_held(self) -> None:
        """End the server once it has got the request of the method that never answers."""
        self._is_held.wait(60)
        self.stop()
        self._is_over.set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        method = self._methods[details.method]
        asked, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)

        def one(request: Any, context: grpc.ServicerContext) -> Message:
            if method.name == self.holds:
                self._is_held.set()
                self._is_over.wait(60)
            if self.refuses:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, HOSTILE.encode("ascii", "ignore").decode())
            filled = fill(answer())
            self.adjust.get(answer.DESCRIPTOR.name, lambda _: None)(filled)
            return filled

        def several(request: Any, context: grpc.ServicerContext) -> Iterator[Message]:
            yield one(request, context)

        kinds = {
            (False, False): grpc.unary_unary_rpc_method_handler(one, asked.FromString, answer.SerializeToString),
            (False, True): grpc.unary_stream_rpc_method_handler(several, asked.FromString, answer.SerializeToString),
            (True, False): grpc.stream_unary_rpc_method_handler(one, asked.FromString, answer.SerializeToString),
            (True, True): grpc.stream_stream_rpc_method_handler(several, asked.FromString, answer.SerializeToString),
        }
        return kinds[method.client_streaming, method.server_streaming]


@contextmanager
def hostile_hub() -> Iterator[tuple[str, Handlers]]:
    handlers = Handlers()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handlers])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    handlers.stop = lambda: server.stop(None).wait(0)
    try:
        yield f"127.0.0.1:{port}", handlers
    finally:
        server.stop(None)
