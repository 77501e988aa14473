"""All interceptors around each RPC, in one wrapper instead of one a layer.

grpc.aio hands a handler over in two styles: an async generator, or a coroutine that calls `context.write()`
(grpc_health's Watch). Both are wrapped here, once; wrapped handlers are cached by method, so that nothing is built
per call. A unary request is taken as a stream of one message, which is read after the layers have let the RPC in
(docs/decisions/0023). grpc.aio's own interceptors would cost a coroutine each and a lookup for every RPC; as a
handler that wraps handlers the stack costs a dictionary lookup (docs/decisions/0003). Bytes that are no message are
found here too: grpc would tell the client the parser's own words and log a traceback for each.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.interceptors.receipts import Receipts
from toolhub_service.transport.message_bound import MAX_FIELDS, bounded
from toolhub_service.transport.rpc import Method, ServicerContext, caller_id
from toolhub_service.transport.status import RpcFailure, details_trailer

Behaviour = Callable[..., Any]

_UNREADABLE = object()
"""Stands for a request whose bytes are not its message."""


class Stack(grpc.GenericRpcHandler):
    """`layers` outermost first. What a layer does not override is not called.

    Servicers are added to it as if it were the server (`add_ToolServiceServicer_to_server(servicer, stack)`), and it
    to the server as the one handler of all their methods.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._entries = tuple([layer.enter if _overrides(layer, "enter") else None for layer in layers])
        self._inner: list[grpc.GenericRpcHandler] = []
        self._wrapped: dict[str, Any] = {}
        self._receipts = Receipts()
        self._receivers = _hooks(layers, "received")
        self._senders = _hooks(layers, "sent")
        self._leavers = tuple(reversed(_hooks(layers, "leave")))
        self._failures = tuple(reversed([failure for _, failure in _hooks(layers, "failure")]))

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Called by the generated `add_…_to_server`."""
        self._inner.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by the generated `add_…_to_server`; grpc.aio makes nothing of them either."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        path = handler_call_details.method
        wrapped = self._wrapped.get(path)
        if wrapped is None:
            for inner in self._inner:
                handler = inner.service(handler_call_details)
                if handler is not None:
                    wrapped = self._wrapped[path] = self._wrap(handler, path)
                    break
        return wrapped  # None: grpc answers UNIMPLEMENTED itself

    def _wrap(self, handler: Any, path: str) -> Any:
        method = _method(path, handler)
        make, behaviour = _parts(handler)
        streams = handler.response_streaming and inspect.isasyncgenfunction(behaviour)
        wrap = self._around_generator if streams else self._around_coroutine
        return make(
            wrap(method, behaviour),
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=_sparing(handler.response_serializer) if streams else handler.response_serializer,
        )

    def _around_coroutine(self, method: Method, behaviour: Behaviour) -> Behaviour:
        takes_stream = method.takes_stream

        async def around(requests: AsyncIterator[Any], context: ServicerContext) -> Any:
            states: list[Any] = []
            error: BaseException | None = None
            request: Any = None
            held = 0
            try:
                self._enter(method, context, states)
                if takes_stream:
                    request = self._each(method, states, requests)
                else:
                    request, held = await self._one(method, context, states)
                response = await behaviour(request, context)
                if response is not None:
                    for place, sent in self._senders:
                        sent(method, states[place])
                return response
            except BaseException as raised:
                error, request = raised, None
                await self._fail(method, context, raised)
                raise
            finally:
                if held:
                    self._receipts.release(held, caller_id())
                self._leave(method, context, states, error)

        return around

    def _around_generator(self, method: Method, behaviour: Behaviour) -> Behaviour:
        takes_stream = method.takes_stream

        async def around(requests: AsyncIterator[Any], context: ServicerContext) -> AsyncIterator[Any]:
            states: list[Any] = []
            error: BaseException | None = None
            request: Any = None
            held = 0
            try:
                self._enter(method, context, states)
                if takes_stream:
                    request = self._each(method, states, requests)
                else:
                    request, held = await self._one(method, context, states)
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        for place, sent in self._senders:
                            sent(method, states[place])
                        yield response
            except BaseException as raised:
                error, request = raised, None
                await self._fail(method, context, raised)
                raise
            finally:
                if held:
                    self._receipts.release(held, caller_id())
                self._leave(method, context, states, error)

        return around

    def _enter(self, method: Method, context: ServicerContext, states: list[Any]) -> None:
        """Enter every layer, before anything of the request is read."""
        for enter in self._entries:
            states.append(enter(method, context) if enter else None)  # noqa: PERF401 - one may raise: the others have entered

    async def _one(self, method: Method, context: ServicerContext, states: list[Any]) -> tuple[Any, int]:
        """The message of a unary request, shown to each layer, and what it holds of the bytes for large ones."""
        sender = caller_id()
        request = await self._receipts.message(context, sender)
        if request is grpc.aio.EOF:
            raise RpcFailure(
                grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_MISSING", f"Send one message with {method.path}."
            )
        shown = self._shown(method, states, request)
        size_bytes = len(shown) if type(shown) is bytes else shown.ByteSize()
        return shown, self._receipts.hold(size_bytes, sender)

    async def _each(self, method: Method, states: list[Any], requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield self._shown(method, states, request)

    def _shown(self, method: Method, states: list[Any], request: Any) -> Any:
        if request is _UNREADABLE:
            raise RpcFailure(
                grpc.StatusCode.INVALID_ARGUMENT,
                "UNREADABLE_REQUEST",
                f"The bytes are not a request of {method.path}, or have more than {MAX_FIELDS:,} fields: send many "
                "arguments as args_json.",
            )
        for place, received in self._receivers:
            received(method, states[place], request)
        return request

    async def _fail(self, method: Method, context: ServicerContext, error: BaseException) -> None:
        """End the RPC with a status, or return when it has one already or was cancelled."""
        if not isinstance(error, Exception) or isinstance(error, grpc.aio.AbortError):
            return
        for failure in self._failures:
            error = failure(method, context, error)
        if isinstance(error, RpcFailure):
            _forget_frames(error)
            await context.abort(error.code, error.message, (details_trailer(error),))

    def _leave(self, method: Method, context: ServicerContext, states: list[Any], error: BaseException | None) -> None:
        for place, leave in self._leavers:
            if place < len(states):
                leave(method, states[place], context, error)


def _forget_frames(error: BaseException | None) -> None:
    """grpc.aio keeps what `abort` raises in a cycle with the RPC, and through tracebacks the request of 4 MiB would
    stay with it until the garbage collector comes to the oldest generation."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _overrides(layer: Layer, hook: str) -> bool:
    return getattr(type(layer), hook) is not getattr(Layer, hook)


def _hooks(layers: Sequence[Layer], hook: str) -> tuple[tuple[int, Any], ...]:
    """(position, bound method) of the layers that do something at a hook."""
    return tuple((place, getattr(layer, hook)) for place, layer in enumerate(layers) if _overrides(layer, hook))


def _lenient(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The deserializer, answering _UNREADABLE where it would raise."""
    if deserialize is None:
        return None

    parse = bounded(deserialize)

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return _UNREADABLE

    return read


def _sparing(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """The serializer, letting pass what a stream has serialised itself."""
    if serialize is None:
        return None
    return lambda message: message if type(message) is bytes else serialize(message)


def _method(path: str, handler: Any) -> Method:
    _, service, name = path.split("/", 2)
    kinds = {
        (False, False): "unary",
        (False, True): "server_stream",
        (True, False): "client_stream",
        (True, True): "bidi_stream",
    }
    takes_stream, sends_stream = bool(handler.request_streaming), bool(handler.response_streaming)
    return Method(path, service, name, kinds[takes_stream, sends_stream], takes_stream)


def _parts(handler: Any) -> tuple[Callable[..., Any], Behaviour]:
    """The constructor for a handler that takes a stream and answers as this one does, and the behaviour inside."""
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream or handler.unary_stream
    return grpc.stream_unary_rpc_method_handler, handler.stream_unary or handler.unary_unary
