"""All interceptors around each RPC, joined into one handler per method when the server is built.

grpc.aio accepts handlers in two styles: an async generator, or a coroutine that calls `context.write()` (grpc_health's
Watch). Both are wrapped here, once per method, with the hooks of the layers that apply to the method. A unary request
is taken as a stream of one message, which is read after the layers have admitted the RPC (docs/decisions/0023).
grpc.aio's own interceptors would cost a coroutine each and a lookup for every RPC; as a generic handler the front costs
one dictionary lookup (docs/decisions/0003). Bytes that are not a valid message are found here too: grpc would send the
client the parser's error text and log a traceback for each.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc.aio import EOF

from toolhub_service.aio.turns import Turns
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.identity.tokens import KeysNeeded
from toolhub_service.runtime.page_seal import PageSeal
from toolhub_service.transport.field_count import COUNTED_FROM_BYTES, MAX_FIELDS, has_more_fields
from toolhub_service.transport.interceptors.admission import Refusals
from toolhub_service.transport.interceptors.auth import enter_again
from toolhub_service.transport.page_tokens import with_sealed_pages
from toolhub_service.transport.receipts import LARGE_BYTES, Receipts
from toolhub_service.transport.rpc import CALLER, Layer, MessageCount, Method, ServicerContext, caller_share
from toolhub_service.transport.status import RpcFailure, details_trailer

Behaviour = Callable[..., Any]

_UNREADABLE = object()
"""Marks a request whose bytes cannot be parsed."""


_UNKNOWN_METHOD = Method("", "", "", "bidi_stream")


class _Large(NamedTuple):
    """A request of LARGE_BYTES or more, with its size as received: protobuf would serialise it again to compute it."""

    request: Any
    size_bytes: int


class Front(grpc.GenericRpcHandler):
    """Joins the layers, `layers` outermost first.

    Servicers are added to the front as if it were the server (`add_ToolServiceServicer_to_server(servicer, front)`); it
    joins the layers that apply to each of their methods into one handler. The front itself is added to the server as
    the one generic handler.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        turns: Turns | None = None,
        refusals: Refusals | None = None,
        pages: PageSeal | None = None,
    ) -> None:
        """`pages` seals the page tokens of every list; None: a key that nobody else has."""
        self._pages = pages or PageSeal(secrets.token_bytes(32))
        self._layers = tuple(layers)
        self._turns = turns or Turns()
        self._refusals = refusals or Refusals()
        self._handlers: dict[str, Any] = {}
        self._receipts = Receipts()
        self._no_such_method: Any = grpc.stream_stream_rpc_method_handler(self._refuse_method)

    async def _refuse_method(self, _requests: AsyncIterator[Any], context: ServicerContext) -> None:
        await self._refusals.pace_stranger(context.peer(), _UNKNOWN_METHOD)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "There is no such method: the contract is toolhub.v1.")

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Called by the generated `add_…_to_server`, which passes the same handlers by name, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by the generated `add_…_to_server`."""
        for name, handler in handlers.items():
            method = _method(service, name, handler)
            self._handlers[method.path] = self._join_layers(method, handler)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler; for an unknown method, one that refuses it."""
        return self._handlers.get(handler_call_details.method, self._no_such_method)

    def _join_layers(self, method: Method, handler: Any) -> Any:
        make, behaviour = _parts(handler)
        if _has_pages(handler):
            behaviour = with_sealed_pages(behaviour, method.path, self._pages)
        hooks = Hooks(method, self._layers, self._refusals)
        yields = handler.response_streaming and inspect.isasyncgenfunction(behaviour)
        if yields:
            around = self._around_generator(hooks, behaviour)
        elif method.takes_stream:
            around = self._around_client_stream(hooks, behaviour)
        else:
            around = self._around_unary(hooks, self._pace_open_rpc(method, behaviour) if method.is_open else behaviour)
        return make(
            around,
            request_deserializer=_lenient(handler.request_deserializer),
            response_serializer=_sparing(handler.response_serializer) if yields else handler.response_serializer,
        )

    def _pace_open_rpc(self, method: Method, behaviour: Behaviour) -> Behaviour:
        async def handle_paced(request: Any, context: ServicerContext) -> Any:
            await self._refusals.pace_open(context.peer(), method)
            return await behaviour(request, context)

        return handle_paced

    def _around_unary(self, hooks: Hooks, behaviour: Behaviour) -> Behaviour:  # noqa: C901 - one function, see below
        """Return the handler of a unary request: one function, because each function call costs every RPC."""
        receipts, turns, entries = self._receipts, self._turns, hooks.entries
        receivers, senders, takes_turn = hooks.receivers, hooks.senders, not hooks.method.is_open

        async def around(_: AsyncIterator[Any], context: ServicerContext) -> Any:  # noqa: C901, PLR0912
            states: list[Any] = [None]  # index 0: layers without `enter` and `leave`
            error: BaseException | None = None
            request: Any = None
            sender, held = "", 0
            try:
                for enter in entries:
                    try:
                        states.append(enter(context))  # one may raise after others have entered
                    except KeysNeeded as needed:
                        states.append(await enter_again(needed, enter, context))
                who = None if (caller := CALLER.get(None)) is None else caller.principal
                sender = "" if who is None else who.id if who.tenancy is None else who.share
                turns.arrivals += takes_turn
                request = await receipts.message(context, sender)
                if request is EOF or request is _UNREADABLE:
                    hooks.refuse(request)
                if type(request) is _Large:
                    held = receipts.hold(request.size_bytes, sender)
                    request = request.request
                for count in hooks.received:
                    count.value += 1
                for place, received in receivers:
                    received(states[place], request)
                if takes_turn and (turns.is_shared or sender != turns.first):
                    await _take_turn(turns, sender)
                response = await behaviour(request, context)
                if response is not None:
                    for count in hooks.sent:
                        count.value += 1
                    for place, sent in senders:
                        sent(states[place])
                return response
            except BaseException as raised:
                error, request = raised, None
                await hooks.fail(context, raised)
                raise
            finally:
                if held:
                    receipts.release(held, sender)
                for place, leave in hooks.leavers:
                    if place < len(states):
                        leave(states[place], context, error)

        return around

    def _around_client_stream(self, hooks: Hooks, behaviour: Behaviour) -> Behaviour:
        turns = self._turns

        async def around(requests: AsyncIterator[Any], context: ServicerContext) -> Any:
            states: list[Any] = [None]  # index 0: layers without `enter` and `leave`
            error: BaseException | None = None
            try:
                await hooks.enter(context, states)
                if not hooks.method.is_open:
                    turns.arrivals += 1
                    await _take_turn(turns, caller_share())
                response = await behaviour(hooks.each(states, requests), context)
                if response is not None:
                    hooks.show_response(states)
                return response
            except BaseException as raised:
                error = raised
                await hooks.fail(context, raised)
                raise
            finally:
                hooks.leave(context, states, error)

        return around

    def _around_generator(self, hooks: Hooks, behaviour: Behaviour) -> Behaviour:
        method, receipts, turns = hooks.method, self._receipts, self._turns

        async def around(requests: AsyncIterator[Any], context: ServicerContext) -> AsyncIterator[Any]:
            states: list[Any] = [None]  # index 0: layers without `enter` and `leave`
            error: BaseException | None = None
            request: Any = None
            held = 0
            try:
                await hooks.enter(context, states)
                if method.takes_stream:
                    request = hooks.each(states, requests)
                else:
                    request = await receipts.message(context, caller_share())
                    if type(request) is _Large:
                        held = receipts.hold(request.size_bytes, caller_share())
                    request = hooks.pass_on(states, request)
                if not method.is_open:
                    turns.arrivals += 1
                    await _take_turn(turns, caller_share())
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        hooks.show_response(states)
                        yield response
            except BaseException as raised:
                error, request = raised, None
                await hooks.fail(context, raised)
                raise
            finally:
                if held:
                    receipts.release(held, caller_share())
                hooks.leave(context, states, error)

        return around


class Hooks:
    """The layers' hooks around the RPCs of one method, joined when the server is built."""

    def __init__(self, method: Method, layers: Sequence[Layer], refusals: Refusals) -> None:
        self.method = method
        self._refusals = refusals
        self.entries: list[Any] = []
        self.receivers: list[tuple[int, Any]] = []
        """(index of the layer's state, hook)"""
        self.senders: list[tuple[int, Any]] = []
        self.leavers: list[tuple[int, Any]] = []
        """Innermost first."""
        self.received: list[MessageCount] = []
        self.sent: list[MessageCount] = []
        self._failures: list[Any] = []
        for layer in layers:
            does = {hook: partial(getattr(layer, hook), method) for hook in layer.hooks if layer.concerns(hook, method)}
            place = 0
            if "enter" in does or "leave" in does:
                self.entries.append(does.get("enter", _nothing))
                place = len(self.entries)
            for hook, places in (("on_request", self.receivers), ("on_response", self.senders)):
                if hook in does:
                    places.append((place, does[hook]))
            if "leave" in does:
                self.leavers.insert(0, (place, does["leave"]))
            if "failure" in does:
                self._failures.insert(0, does["failure"])
            self.received += layer.counters("on_request", method)
            self.sent += layer.counters("on_response", method)

    async def enter(self, context: ServicerContext, states: list[Any]) -> None:
        """Enter every layer, before any of the request is read."""
        for enter in self.entries:
            try:
                states.append(enter(context))  # one may raise after others have entered
            except KeysNeeded as needed:
                states.append(await enter_again(needed, enter, context))
        if self.method.is_open:
            await self._refusals.pace_open(context.peer(), self.method)

    async def each(self, states: list[Any], requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield self.pass_on(states, request)

    def pass_on(self, states: list[Any], request: Any) -> Any:
        """Pass the request through every layer and return it."""
        if request is EOF or request is _UNREADABLE:
            self.refuse(request)
        if type(request) is _Large:
            request = request.request
        for count in self.received:
            count.value += 1
        for place, received in self.receivers:
            received(states[place], request)
        return request

    def show_response(self, states: list[Any]) -> None:
        """Pass each response through the layers before it is sent."""
        for count in self.sent:
            count.value += 1
        for place, sent in self.senders:
            sent(states[place])

    def refuse(self, request: Any) -> NoReturn:
        """Raises RpcFailure for a unary request that did not arrive, or that cannot be parsed."""
        if request is EOF:
            raise RpcFailure(Reason.REQUEST_MISSING, f"Send one message with {self.method.path}.")
        raise RpcFailure(
            Reason.UNREADABLE_REQUEST,
            f"The bytes are not a request of {self.method.path}, or have more than {MAX_FIELDS:,} fields: send many "
            "arguments as args_json.",
        )

    async def fail(self, context: ServicerContext, error: BaseException) -> None:
        """End the RPC with a status, or return when it already has one or was cancelled."""
        if not isinstance(error, Exception) or isinstance(error, grpc.aio.AbortError):
            return
        for failure in self._failures:
            error = failure(context, error)
        if isinstance(error, RpcFailure):
            _forget_frames(error)
            if error.code is grpc.StatusCode.UNAUTHENTICATED:
                await self._refusals.pace_stranger(context.peer(), self.method)
            elif error.reason is Reason.OVERLOADED:
                await self._refusals.pace(caller_share(), self.method)
            # The reason in plain text, too: a proxy can retry a request that no hub has begun on another hub.
            reason = ("toolhub-reason", error.reason.name)
            await context.abort(error.code, error.message, (reason, details_trailer(error)))

    def leave(self, context: ServicerContext, states: list[Any], error: BaseException | None) -> None:
        """Leave the layers that were entered, innermost first."""
        for place, leave in self.leavers:
            if place < len(states):
                leave(states[place], context, error)


async def _take_turn(turns: Turns, share: str) -> None:
    """Wait until the RPC may begin. Raises RpcFailure when too many of its tenant wait."""
    if not turns.may_wait(share):
        own = turns.waiting_of(share)
        raise RpcFailure(
            Reason.OVERLOADED,
            f"{own} of your calls wait for their turn, which is your share of {turns.most}. Try again shortly.",
            {"max_in_flight": str(turns.most), "yours": str(own)},
        )
    await turns.take(share)


def _nothing(_: ServicerContext) -> None:
    """The `enter` hook of a layer that has none."""


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks: grpc.aio keeps what `abort` raises in a cycle with the RPC, so they would keep its request
    of up to 4 MiB until the garbage collector reaches the oldest generation."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _lenient(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Return a deserializer that returns _UNREADABLE where it would raise, and _Large for a large request."""
    if deserialize is None:
        return lambda data: data if len(data) < LARGE_BYTES else _Large(data, len(data))
    descriptor = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)

    def read(data: bytes) -> Any:
        if len(data) > COUNTED_FROM_BYTES and descriptor is not None and has_more_fields(data, descriptor, MAX_FIELDS):
            return _UNREADABLE
        try:
            message = deserialize(data)
        except DecodeError:
            return _UNREADABLE
        return message if len(data) < LARGE_BYTES else _Large(message, len(data))

    return read


def _has_pages(handler: Any) -> bool:
    """Return whether the RPC lists something in pages."""
    request = getattr(getattr(handler.request_deserializer, "__self__", None), "DESCRIPTOR", None)
    return request is not None and "page_token" in request.fields_by_name


def _sparing(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Return a serializer that passes on what a stream has serialised itself."""
    if serialize is None:
        return None
    return lambda message: message if type(message) is bytes else serialize(message)


def _method(service: str, name: str, handler: Any) -> Method:
    kinds = {
        (False, False): "unary",
        (False, True): "server_stream",
        (True, False): "client_stream",
        (True, True): "bidi_stream",
    }
    takes_stream, sends_stream = bool(handler.request_streaming), bool(handler.response_streaming)
    return Method(f"/{service}/{name}", service, name, kinds[takes_stream, sends_stream], takes_stream)


def _parts(handler: Any) -> tuple[Callable[..., Any], Behaviour]:
    """Return the constructor for a handler that takes a stream and answers as this one does, and the handler's
    function."""
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler, handler.stream_stream or handler.unary_stream
    return grpc.stream_unary_rpc_method_handler, handler.stream_unary or handler.unary_unary
