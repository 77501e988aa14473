"""Prometheus metrics. Every label child is created once and cached: a call costs dictionary look-ups and additions.

Label values from callers are bounded: a tool that the catalog does not know is `unknown`, and values beyond a bound are
`other`. With several worker processes the values are in files shared through `PROMETHEUS_MULTIPROC_DIR`, which must be
set before this module is imported; any worker then serves the metrics of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, make_wsgi_app, values

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.result import StepTime
from toolhub_service.domain.storage import STORAGE_LIMITS
from toolhub_service.guards.accepting import BACKLOG, Accepted, Acceptor
from toolhub_service.telemetry import names
from toolhub_service.telemetry.counters import (
    Count,
    CountedStepTimes,
    Counts,
    Distributions,
    SharedCount,
    SharedStepTimes,
    StepTimes,
    make_scrape_registry,
)
from toolhub_service.telemetry.names import OTHER, UNKNOWN_TOOL, Metric, MetricKind

T = TypeVar("T")
_MAX_REASONS: Final = 200
_MAX_UPSTREAMS: Final = 200
_MAX_METHODS: Final = 200
# Metrics that one thread updates at each call.
_OF_EVERY_CALL: Final = frozenset(
    {
        *(names.TOOL_INVOCATIONS, names.TOOL_LATENCY, names.IN_FLIGHT),
        *(names.RPC_STARTED, names.RPC_HANDLED, names.RPC_SECONDS, names.RPC_RECEIVED, names.RPC_SENT),
        *(names.MCP_SECONDS, names.AUTHENTICATIONS),
    }
)


class _Children(dict[str, T], Generic[T]):
    """Children by label, created on first use; beyond the bound all values share one."""

    def __init__(self, make: Callable[[str], T], bound: int) -> None:
        super().__init__()
        self._make = make
        self._bound = bound

    def __missing__(self, label: str) -> T:
        if len(self) >= self._bound and label not in {UNKNOWN_TOOL, OTHER}:
            return self[OTHER]
        child = self[label] = self._make(label)
        return child


class _ToolMetrics:
    __slots__ = ("by_principal", "denied", "failed", "latency", "replays", "retries", "succeeded")

    def __init__(self, metrics: dict[str, Any], tool: str, *, has_principals: bool) -> None:
        invocations = metrics[names.TOOL_INVOCATIONS.name]
        if has_principals:
            self.by_principal: dict[tuple[str, bool], Count | SharedCount] = {}
        else:
            self.succeeded = count_of(invocations.labels(tool, "true"))
            self.failed = count_of(invocations.labels(tool, "false"))
        self.latency: Histogram = metrics[names.TOOL_LATENCY.name].labels(tool)
        self.retries: Counter = metrics[names.TOOL_RETRIES.name].labels(tool)
        self.replays: Counter = metrics[names.TOOL_REPLAYS.name].labels(tool)
        denied = metrics[names.POLICY_DENIED.name]
        self.denied: _Children[Counter] = _Children(lambda reason: denied.labels(tool, reason), _MAX_REASONS)


def count_of(child: Count | Counter) -> Count | SharedCount:
    """Return the value to be updated by `value += 1`, without a function call."""
    return child if isinstance(child, Count) else SharedCount(child)


class RpcMetrics:
    """One method's RPC metrics under go-grpc-middleware's names. Kind: unary, server_, client_ or bidi_stream."""

    __slots__ = ("handled", "received", "seconds", "sent", "started")

    def __init__(self, metrics: dict[str, Any], kind: str, service: str, method: str) -> None:
        labels = (kind, service, method)

        def count(metric: Metric, *more: str) -> Count | SharedCount:
            return count_of(metrics[metric.name].labels(*labels, *more))

        self.started = count(names.RPC_STARTED)
        self.received = count(names.RPC_RECEIVED)
        """Messages received."""
        self.sent = count(names.RPC_SENT)
        """Messages sent."""
        self.seconds: Histogram = metrics[names.RPC_SECONDS.name].labels(*labels)
        self.handled = _Children(lambda code: count(names.RPC_HANDLED, code), 32)
        """By status name, such as `OK` or `NOT_FOUND`."""


class Metrics:
    """All of the hub's metrics in their own registry."""

    def __init__(
        self,
        *,
        version: str,
        max_tools: int = 1_000,
        max_principals: int = 0,
        multiprocess_dir: Path | None = None,
    ) -> None:
        """`max_principals` get their own label on calls.

        Raises HubFailure METRICS_NOT_SHARED if `multiprocess_dir` was set late.
        """
        if multiprocess_dir is not None and values.ValueClass.__name__ != "MmapedValue":
            message = "Set PROMETHEUS_MULTIPROC_DIR in the environment of the workers before they start."
            raise HubFailure(StartReason.METRICS_NOT_SHARED, message)
        self._multiprocess_dir = multiprocess_dir
        self._registry = CollectorRegistry()
        self.scraped = make_scrape_registry(self._registry if multiprocess_dir is None else multiprocess_dir)
        """The registry for scrapers: the metrics of all workers."""
        self._max_principals = max_principals
        self._principals: set[str] = set()
        counted = frozenset() if multiprocess_dir is not None else _OF_EVERY_CALL
        self._all: dict[str, Any] = {
            metric.name: _make_counts(shown, self._registry)
            if metric in counted
            else _make_metric(shown, self._registry)
            for metric in names.METRICS
            if metric is not names.TOOL_STEP
            for shown in [metric if max_principals else metric.without(names.PRINCIPAL)]
        }
        self._tools: _Children[_ToolMetrics] = _Children(
            lambda tool: _ToolMetrics(self._all, tool, has_principals=max_principals > 0), max_tools
        )
        step_times = CountedStepTimes if multiprocess_dir is None else SharedStepTimes
        self._steps: StepTimes = step_times(names.TOOL_STEP, self._registry)
        errors = self._all[names.TOOL_ERRORS.name]
        self._errors: _Children[Counter] = _Children(errors.labels, _MAX_REASONS)
        self._defects: Counter = self._all[names.TOOL_DEFECTS.name]
        breakers = self._all[names.BREAKER.name]
        self._breakers: _Children[Gauge] = _Children(breakers.labels, _MAX_UPSTREAMS)
        self._rpcs: dict[tuple[str, str, str], RpcMetrics] = {}
        in_flight = self._all[names.IN_FLIGHT.name]
        self.in_flight: AbstractContextManager[None] = in_flight.labels() if counted else in_flight.track_inprogress()
        """`with metrics.in_flight:` around each execution; one object for all, as it only counts."""
        self._policy_revision = ""
        self._all[names.BUILD_INFO.name].labels(version).set(1)

    # Calls

    def call_settled(
        self, tool: str, *, ok: bool, latency_s: float, steps: Iterable[StepTime], principal: str = ""
    ) -> None:
        """Count an ended call and its steps."""
        child = self._tools[tool]
        if self._max_principals:
            counted = self._of_principal(child, tool, principal, ok)
        else:
            counted = child.succeeded if ok else child.failed
        counted.value += 1
        child.latency.observe(latency_s)
        self._steps.observe(steps)

    def _of_principal(self, child: _ToolMetrics, tool: str, principal: str, ok: bool) -> Count | SharedCount:
        """A tool that is `other` is so for every principal."""
        if principal not in self._principals:
            if len(self._principals) < self._max_principals:
                self._principals.add(principal)
            else:
                principal = OTHER
        found = child.by_principal.get((principal, ok))
        if found is None:
            shown = tool if self._tools.get(tool) is child else OTHER
            family = self._all[names.TOOL_INVOCATIONS.name]
            found = child.by_principal[principal, ok] = count_of(family.labels(shown, str(ok).lower(), principal))
        return found

    def call_failed(self, kind: str) -> None:
        self._errors[kind].inc()

    def storage_refused(self, limit: str) -> None:
        """Count a call that could store nothing more; other limits are not counted here."""
        if limit in STORAGE_LIMITS:
            self._all[names.STORAGE_REFUSED.name].labels(limit).inc()

    def count_defect(self) -> None:
        self._defects.inc()

    def call_retried(self, tool: str) -> None:
        self._tools[tool].retries.inc()

    def call_replayed(self, tool: str) -> None:
        self._tools[tool].replays.inc()

    def policy_denied(self, tool: str, reason: str) -> None:
        self._tools[tool].denied[reason].inc()

    # RPCs

    def rpc(self, kind: str, service: str, method: str) -> RpcMetrics:
        """Return the metrics of one method; the same object each time."""
        key = (kind, service, method)
        found = self._rpcs.get(key)
        if found is None:
            if len(self._rpcs) >= _MAX_METHODS and key != (OTHER, OTHER, OTHER):
                return self.rpc(OTHER, OTHER, OTHER)
            found = self._rpcs[key] = RpcMetrics(self._all, *key)
        return found

    def family(self, metric: Metric) -> Any:
        """Return the prometheus_client object of one of `names.METRICS`, for telemetry with its own children."""
        return self._all[metric.name]

    # The rest of the hub

    def audit_committed(self, events: int, seconds: float, depth: int) -> None:
        self._all[names.AUDIT_EVENTS.name].inc(events)
        self._all[names.AUDIT_COMMIT.name].observe(seconds)
        self._all[names.AUDIT_DEPTH.name].set(depth)

    def audit_failed(self, reason: str) -> None:
        self._all[names.AUDIT_FAILURES.name].inc()

    def breaker_state(self, upstream: str, state: int) -> None:
        """Set the state: 0 closed, 1 half-open, 2 open."""
        self._breakers[upstream].set(state)

    def oldest_call(self, age_s: float) -> None:
        """Set the age of the oldest call in flight, in seconds; 0 when there is none."""
        self._all[names.OLDEST_CALL.name].set(age_s)

    def forget_upstream(self, upstream: str) -> None:
        """Remove the upstream's metrics, so that no alert fires for a removed one."""
        if upstream in self._breakers:
            self._breakers.pop(upstream).set(0)
            self.drop(names.BREAKER, upstream)

    def drop(self, metric: Metric, *labels: str) -> None:
        """Remove these labels. Workers share files that only grow: they keep exposing the last value."""
        if self._multiprocess_dir is None:
            self.family(metric).remove(*labels)

    def policy_loaded(self, revision: str) -> None:
        """A policy came into force."""
        info = self._all[names.POLICY_INFO.name]
        if self._policy_revision and self._policy_revision != revision:
            info.labels(self._policy_revision).set(0)
            self.drop(names.POLICY_INFO, self._policy_revision)
        info.labels(revision).set(1)
        self._policy_revision = revision
        self._all[names.POLICY_RELOADS.name].labels("true").inc()

    def policy_rejected(self) -> None:
        """A new policy was invalid; the old one stays."""
        self._all[names.POLICY_RELOADS.name].labels("false").inc()

    def exposition(self) -> bytes:
        """Return the metrics of all workers in Prometheus' text format."""
        return generate_latest(self.scraped)


def _make_counts(metric: Metric, registry: CollectorRegistry) -> Counts | Distributions:
    return (Distributions if metric.kind is MetricKind.HISTOGRAM else Counts)(metric, registry)


def _make_metric(metric: Metric, registry: CollectorRegistry) -> Any:
    if metric.kind is MetricKind.HISTOGRAM:
        return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
    if metric.kind is MetricKind.COUNTER:
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    return Gauge(metric.name, metric.help, metric.labels, registry=registry, multiprocess_mode=_over_workers(metric))


def _over_workers(metric: Metric) -> Literal["livesum", "livemin", "livemax"]:
    """Return the combined value of a gauge of several workers."""
    summed = {names.IN_FLIGHT, names.AUDIT_DEPTH, names.JOBS_RUNNING, names.JOB_WATCHERS}
    if metric in summed or metric in {names.MCP_SESSIONS, names.MCP_STREAMS}:
        return "livesum"
    least = {names.SOURCE_UP, names.SOURCE_WHOLE, names.CERTIFICATE_END, names.WORKLOAD_API}  # so for one worker
    return "livemin" if metric in least else "livemax"


# The endpoint: `GET /metrics`, answered by the app of prometheus_client, `GET /healthz` (the process responds) and `GET
# /readyz` (the hub serves): a probe in plaintext and without a certificate, whatever the hub wants

_TIMEOUT_S: Final = 5.0
_HEAD_BYTES: Final = 8_192
_CONNECTIONS: Final = 32
_PLAIN: Final = (("Content-Type", "text/plain; charset=utf-8"),)


class MetricsEndpoint:
    """One request a connection; slow and large requests are cut off, and a new connection takes the place of one that
    has asked for nothing yet.

    A web page can reach loopback by its own name that resolves there (DNS rebinding), and then sends that name as Host:
    only addresses and known names are answered.
    """

    def __init__(self, registry: CollectorRegistry, hosts: Collection[str] = ("localhost",)) -> None:
        """`hosts`: names accepted as Host, in lower case; `*`: any."""
        self.is_ready: Callable[[], bool] = lambda: False
        """Whether gRPC health reports SERVING; set by the server."""
        self._app = make_wsgi_app(registry)
        self._hosts = frozenset(hosts)
        self._acceptor: Acceptor | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0 lets the system choose one. Raises OSError when the port is taken."""
        server = await asyncio.start_server(_ignore_connection, host, port, start_serving=False)
        bound = [each.dup() for each in server.sockets]
        server.close()
        for each in bound:
            each.listen(BACKLOG)
        self._acceptor = Acceptor(bound, self._serve, max_connections=_CONNECTIONS, first_byte_s=_TIMEOUT_S)
        self._acceptor.start()
        return int(bound[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    async def _serve(self, accepted: Accepted) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted.socket, limit=_HEAD_BYTES)
        accepted.abort = writer.transport.abort
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                accepted.begin()
                writer.write(await self._answer(head))
                accepted.rest(is_known=False)  # it may never read what it gets
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass  # The client disconnected, or sent something other than a short GET.
        finally:
            accepted.end()
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"")
        if not all(map(self._answers_to, _hosts_of(head))):
            message = b"metrics.hosts (TOOLHUB_METRICS_HOSTS) does not name this host\n"
            return _response(HTTPStatus.MISDIRECTED_REQUEST, message)
        if path == b"/metrics":
            # Writing thousands of series takes milliseconds.
            fields, body = await asyncio.to_thread(self._render_exposition, rest.partition(b" ")[0], head)
            return _response(HTTPStatus.OK, b"" if method == b"HEAD" else body, fields)
        if path == b"/healthz":
            return _response(HTTPStatus.OK, b"ok\n")
        if path == b"/readyz":
            if self.is_ready():
                return _response(HTTPStatus.OK, b"ok\n")
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n")
        return _response(HTTPStatus.NOT_FOUND, b"" if method == b"HEAD" else _HELP)

    def _render_exposition(self, target: bytes, head: bytes) -> tuple[list[tuple[str, str]], bytes]:
        """Return header fields and body, in the requested format, compression and selection (`name[]`)."""
        fields: list[tuple[str, str]] = []
        asked = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": target.partition(b"?")[2].decode("latin-1"),
            "HTTP_ACCEPT": ",".join(_fields_of(head, "accept")),
            "HTTP_ACCEPT_ENCODING": ",".join(_fields_of(head, "accept-encoding")),
        }
        body = self._app(asked, lambda _, answered: fields.extend(answered))
        return fields, b"".join(body)

    def _answers_to(self, host: str) -> bool:
        try:
            ip_address(host)
        except ValueError:
            return host in self._hosts or "*" in self._hosts
        return True


def _ignore_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """asyncio finds and binds the addresses of a host; connections are accepted by the Acceptor."""


def _fields_of(head: bytes, wanted: str) -> list[str]:
    """Return the values of a header field, one a line."""
    lines = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])
    return [value.strip() for name, _, value in lines if name.strip().lower() == wanted]


def _hosts_of(head: bytes) -> Iterator[str]:
    """Yield the request's Host without the port; none, as HTTP/1.0 allows, is no browser's."""
    target = head.decode("latin-1").partition("\r\n")[0]
    names = _fields_of(head, "host")
    asked = target.partition(" ")[2]
    if "://" in asked.partition(" ")[0]:
        names.append(asked.partition("://")[2].partition("/")[0])
    for name in names:
        bare = name.strip().lower()
        yield bare.partition("]")[0][1:] if bare.startswith("[") else bare.partition(":")[0].rstrip(".")


_HELP: Final = b"tool-hub: metrics are at /metrics, liveness at /healthz, readiness at /readyz.\n"


def _response(status: HTTPStatus, body: bytes, fields: Sequence[tuple[str, str]] = _PLAIN) -> bytes:
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields)
    return head.encode() + b"X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n" + body
