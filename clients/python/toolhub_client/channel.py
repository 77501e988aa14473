"""The channel to a hub: where it is, who calls, kept alive, and repeated where nothing can have happened twice."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import grpc

from toolhub_client.errors import Reason
from toolhub_client.failures import (
    HubError,
    HubUnavailable,
    deadline_exceeded,
    hub_error,
    unavailable,
)
from toolhub_client.problems import explain

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_PORT = 50051
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
_PROBLEM_S = 1.0

# The hub answers so before it looks at the request: nothing has happened, whatever was asked.
_REFUSED = frozenset({Reason.OVERLOADED, Reason.DRAINING})

Answer = TypeVar("Answer")


class PlaintextCredentialWarning(UserWarning):
    """An API key is sent over a connection that others can read."""


def client_version() -> str:
    """The version of this package; `0` where it runs from a folder that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and needed by a channel only

    for package in ("toolhub-client", "tool-hub"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "0"


OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # What is retried is decided in `Connection.unary`, in one place; grpc goes on resending what never left it.
    # A connection that swallows everything is noticed after 40 s, also while a call waits for its answer.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


ApiKey = str | Callable[[], str]
"""An API key or a token, or a function that is asked for it before each RPC: it answers at once, from what it keeps."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a hub is, and how it is proved to be the hub and the caller the caller."""

    address: str
    api_key: ApiKey = field(default="", repr=False)
    credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)
    """None: plaintext."""

    def open(self, options: Sequence[tuple[str, str | int]] = ()) -> grpc.aio.Channel:
        """The channel. grpc connects when the first RPC is made. Warns of a key that others can read on its way."""
        settings = [*OPTIONS, ("grpc.primary_user_agent", f"toolhub-python/{client_version()}"), *options]
        if self.credentials is not None:
            return grpc.aio.secure_channel(self.address, self.credentials, options=settings)
        if self.api_key and not _is_local(self.address):
            warnings.warn(
                f"The API key goes to {self.address} unencrypted; use https:// or set TOOLHUB_CA_FILE.",
                PlaintextCredentialWarning,
                stacklevel=4,
            )
        return grpc.aio.insecure_channel(self.address, options=settings)


def target(
    address: str = "",
    *,
    api_key: ApiKey = "",
    ca_file: str | Path = "",
    cert_file: str | Path = "",
    key_file: str | Path = "",
    credentials: grpc.ChannelCredentials | None = None,
) -> Target:
    """What is given, else what the environment says. Raises ValueError for a certificate without its key, and for TLS
    together with `http://`; OSError for a file that cannot be read.

    `address`: TOOLHUB_ADDRESS, else 127.0.0.1:50051; `host`, `host:port`, `https://host`, `dns:///name:port`,
    `unix:/path`. `api_key`: TOOLHUB_API_KEY; a function is asked before each RPC. `ca_file` (TOOLHUB_CA_FILE):
    certificates (PEM) to trust in the place of the system's. `cert_file` and `key_file` (TOOLHUB_CERT_FILE,
    TOOLHUB_KEY_FILE): the caller's own, for mutual TLS. TLS is on with `https://`, with any of these files, and with
    `credentials`.
    """
    given = address or os.environ.get("TOOLHUB_ADDRESS", "") or DEFAULT_ADDRESS
    scheme, where = _split(given)
    ca = str(ca_file) or os.environ.get("TOOLHUB_CA_FILE", "")
    cert = str(cert_file) or os.environ.get("TOOLHUB_CERT_FILE", "")
    key = str(key_file) or os.environ.get("TOOLHUB_KEY_FILE", "")
    if bool(cert) != bool(key):
        raise ValueError("cert_file and key_file belong together: give both or none")
    if scheme == "http" and (ca_file or cert_file or credentials):
        raise ValueError(f"{given} asks for plaintext, and certificates for TLS: write https://")
    if credentials is None and scheme != "http" and (scheme == "https" or ca or cert):
        ca_pem, key_pem, cert_pem = (Path(path).read_bytes() if path else None for path in (ca, key, cert))
        credentials = grpc.ssl_channel_credentials(ca_pem, key_pem, cert_pem)
    return Target(where, api_key or os.environ.get("TOOLHUB_API_KEY", ""), credentials)


def _split(address: str) -> tuple[str, str]:
    """The scheme (`http`, `https` or empty) and what grpc connects to."""
    parts = urlsplit(address)
    if parts.scheme in {"http", "https"}:
        default = 443 if parts.scheme == "https" else DEFAULT_PORT
        return parts.scheme, parts.netloc if parts.port else f"{parts.netloc.rstrip(':')}:{default}"
    is_bare = ":" not in address or (address.startswith("[") and address.endswith("]"))
    return "", f"{address}:{DEFAULT_PORT}" if is_bare else address


def _is_local(address: str) -> bool:
    host = address.removeprefix("dns:///").rpartition(":")[0].strip("[]")
    return address.startswith(("unix:", "unix-abstract:")) or host in {"localhost", "::1"} or host.startswith("127.")


class HubChannel(grpc.aio.Channel):
    """A channel whose every RPC bears credential and trace context, so that generated stubs on it need neither."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Callable[[], Sequence[tuple[str, str]]]) -> None:
        self._channel = channel
        self._metadata = metadata

    def _bearing(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        multicallable = make(*arguments, **options)

        def call(*request: Any, metadata: Sequence[tuple[str, str]] | None = None, **options: Any) -> Any:
            return multicallable(*request, metadata=(*self._metadata(), *(metadata or ())), **options)

        return call

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._bearing(self._channel.unary_unary, *arguments, **options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._bearing(self._channel.unary_stream, *arguments, **options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._bearing(self._channel.stream_unary, *arguments, **options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._bearing(self._channel.stream_stream, *arguments, **options)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class TimeLeft:
    """Of a timeout that began when this was made; None: no end. Raises ValueError for one that is not above 0."""

    def __init__(self, timeout_s: float | None) -> None:
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise ValueError(f"timeout is {timeout_s!r}: give seconds above 0, or None for no limit")
        self._until_s = None if timeout_s is None else time.monotonic() + timeout_s

    def seconds(self) -> float | None:
        """Never 0, which would be refused as a timeout; what is left so little of ends at once."""
        return None if self._until_s is None else max(0.001, self._until_s - time.monotonic())


class Connection:
    """Makes RPCs: waits until a hub is there, repeats what may be repeated, and raises HubError for what fails."""

    def __init__(self, target: Target, *, retry_s: float, options: Sequence[tuple[str, str | int]] = ()) -> None:
        """`retry_s`: how long to wait for a hub, and to repeat what it refused; 0 asks once."""
        self.address = target.address
        self.retry_s = retry_s
        self._is_encrypted = target.credentials is not None
        self._api_key = target.api_key
        self.channel = HubChannel(target.open(options), self._metadata)

    def _metadata(self) -> Sequence[tuple[str, str]]:
        carrier: dict[str, str] = {}
        # Tracing is the application's choice: where it has not imported OpenTelemetry there is no trace to carry on.
        if "opentelemetry.trace" in sys.modules:
            from opentelemetry.propagate import inject

            inject(carrier)
        key = self._api_key() if callable(self._api_key) else self._api_key
        return (*((("authorization", f"Bearer {key}"),) if key else ()), *carrier.items())

    async def ready(self, patience_s: float | None = None) -> None:
        """Return once a hub is connected. Raises HubUnavailable when none is within that time, or `retry_s`.

        Waiting here, before the RPC, is what tells a hub that is away from one that died with the call in its hands.
        """
        if self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return
        waited_s = max(self.retry_s if patience_s is None else patience_s, FIRST_PAUSE_S)
        try:
            async with asyncio.timeout(waited_s):
                await self.channel.channel_ready()
        except TimeoutError as late:
            if (details := await self._problem(min(_PROBLEM_S, waited_s))) is None:
                return
            why = explain(details, is_encrypted=self._is_encrypted)
            tls = "speak TLS" if self._is_encrypted else "want TLS (https://)"
            asked = f"No hub answered within {waited_s:.3g} s. Is it running, and does it {tls}?"
            raise unavailable(self.address, why or asked, details) from late

    async def _problem(self, within_s: float) -> str | None:
        """gRPC's message about the last failed attempt to connect, which only an RPC gets; None when connected."""
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            await check(b"", timeout=within_s)
        except grpc.aio.AioRpcError as failed:
            is_connected = failed.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            return None if is_connected else failed.details() or ""
        return None

    async def unary(
        self,
        rpc: Callable[..., Awaitable[Answer]],
        request: object,
        *,
        repeatable: bool = True,
        timeout_s: float | None = None,
    ) -> Answer:
        """Make one unary RPC. `repeatable`: doing it twice is as doing it once. Raises HubError.

        What the hub refused without looking at it (OVERLOADED, DRAINING) is sent again after the time it asks for; what
        broke on the way (UNAVAILABLE) only if it is repeatable. `timeout_s` bounds all of it.
        """
        time_left = TimeLeft(timeout_s)
        until_s = time.monotonic() + self._patience_s(timeout_s)
        failed = 0
        while True:
            await self.ready(max(0.0, until_s - time.monotonic()))
            try:
                return await rpc(request, timeout=time_left.seconds())
            except grpc.aio.AioRpcError as raised:
                error = hub_error(raised, self.address)
                failed += 1
                pause_s = pause_after(failed, error)
                if not _may_repeat(error, repeatable) or time.monotonic() + pause_s >= until_s:
                    raise error from None
            await asyncio.sleep(pause_s)

    def _patience_s(self, timeout_s: float | None) -> float:
        return self.retry_s if timeout_s is None else min(self.retry_s, timeout_s)

    @asynccontextmanager
    async def within(self, timeout_s: float | None) -> AsyncIterator[None]:
        """Ends what is done inside after that time, such as an upload of several RPCs. Raises DeadlineExceeded."""
        scope = asyncio.timeout(TimeLeft(timeout_s).seconds())
        try:
            async with scope:
                yield
        except TimeoutError as late:
            if timeout_s is None or not scope.expired():
                raise
            raise deadline_exceeded(self.address, timeout_s) from late

    async def pages(
        self, rpc: Callable[..., Awaitable[Answer]], request: Any, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Answer, None]:
        """The answers of a paged RPC, to the last page, all of them within `timeout_s`. Raises HubError."""
        time_left = TimeLeft(timeout_s)
        while True:
            page: Any = await self.unary(rpc, request, timeout_s=time_left.seconds())
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def items(
        self, rpc: Callable[..., Awaitable[object]], request: Any, field: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """What stands in that field of the answers of a paged RPC, as `pages`."""
        async for page in self.pages(rpc, request, timeout_s=timeout_s):
            for item in getattr(page, field):
                yield item

    async def stream(self, messages: AsyncGenerator[Answer, None]) -> AsyncGenerator[Answer, None]:
        """The same messages, of a stream that resumes by itself when its connection breaks. Raises HubError."""
        await self.ready()
        try:
            async with aclosing(messages):
                async for message in messages:
                    yield message
        except grpc.aio.AioRpcError as raised:
            raise hub_error(raised, self.address) from None

    async def events(
        self, rpc: Callable[..., Any], request: object, *, repeatable: bool, timeout_s: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """The messages that answer one request, which is sent again like that of `unary` until the first has come.
        Leaving cancels the RPC. Raises HubError."""
        time_left = TimeLeft(timeout_s)
        until_s = time.monotonic() + self._patience_s(timeout_s)
        failed = 0
        while True:
            await self.ready(max(0.0, until_s - time.monotonic()))
            call, begun = rpc(request, timeout=time_left.seconds()), False
            try:
                async for message in call:
                    begun = True
                    yield message
                return
            except grpc.aio.AioRpcError as raised:
                error = hub_error(raised, self.address)
                failed += 1
                pause_s = pause_after(failed, error)
                if begun or not _may_repeat(error, repeatable) or time.monotonic() + pause_s >= until_s:
                    raise error from None
            finally:
                call.cancel()
            await asyncio.sleep(pause_s)


def _may_repeat(error: HubError, repeatable: bool) -> bool:
    return error.reason in _REFUSED or (repeatable and isinstance(error, HubUnavailable))


def pause_after(failed: int, error: Exception) -> float:
    """Seconds before the next attempt, after so many in a row that brought nothing.

    They grow exponentially with full jitter (Brooker, "Exponential Backoff And Jitter"); a hub that says when to come
    back (RetryInfo), as one that leaves does, is not asked before.
    """
    own_s = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**failed))  # noqa: S311 - jitter, not a secret
    asked_s = error.retry_after_s if isinstance(error, HubError) else 0.0
    return max(own_s, min(asked_s, LONGEST_PAUSE_S) * random.uniform(1.0, 1.5))  # noqa: S311 - jitter, not a secret
