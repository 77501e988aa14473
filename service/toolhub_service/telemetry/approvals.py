"""Metrics of approvals, and the webhook that posts each to the operator's URL until it is accepted.

    toolhub-timestamp: 1700000000
    toolhub-signature: v1=<hex of HMAC-SHA256(secret, "1700000000." + body)>

As Stripe and Slack sign theirs: the receiver compares the signature and refuses an old timestamp. The body is JSON with
the fields of `toolhub.v1.Approval`, as approvers see them. A question waits in a bounded queue and never holds up the
call that asked; what cannot be delivered is given up, and the log says so. The operator chose the URL, so that the
egress rules of tools do not apply to it; proxies and credentials of the environment have no effect.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import httpx
import orjson
from structlog.typing import FilteringBoundLogger

from toolhub_service import __version__
from toolhub_service.domain.approval import Approval, ApprovalState
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.guards.foreign_text import escape_hidden, on_one_line
from toolhub_service.telemetry import names
from toolhub_service.telemetry.metrics import Metrics

SECRET_MIN_BYTES = 16
# Concurrent deliveries: one endpoint that hangs in one of them does not stop the others.
_WORKERS = 4
_PAUSE_S = 0.5
_PAUSE_MAX_S = 60.0
# Status codes below 500 that allow a retry.
_RETRIED = frozenset({408, 425, 429})


def check_webhook(url: str, secret: bytes) -> httpx.URL:
    """Return the URL. Raises ValueError for a short secret or a URL that is not http or https."""
    if len(secret) < SECRET_MIN_BYTES:
        raise ValueError(f"the webhook's secret has {len(secret)} bytes; it needs at least {SECRET_MIN_BYTES}")
    found = httpx.URL(url)
    if found.scheme not in ("http", "https") or not found.host:
        raise ValueError("the webhook's URL must be http:// or https:// and name a host")
    return found


class ApprovalWebhook:
    """`offer` is what `Approvals` calls; `start` and `close` are the hub's."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        clock: Clock,
        randomness: Randomness,
        log: FilteringBoundLogger,
        timeout_s: float = 10.0,
        attempts: int = 8,
        max_waiting: int = 1_000,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`attempts` with pauses of up to a minute: about three minutes.

        Raises ValueError for a short secret or a URL that is not http or https.
        """
        self._url = check_webhook(url, secret)
        self._secret = secret
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._attempts = attempts
        self._pause = pause
        self._waiting: asyncio.Queue[Approval] = asyncio.Queue(max_waiting)
        # No redirects: the signed body is meant for the operator's URL only.
        self._client = httpx.AsyncClient(timeout=timeout_s, follow_redirects=False, trust_env=False)
        self._workers: list[asyncio.Task[None]] = []

    def offer(self, approval: Approval) -> None:
        """Queue it for delivery. Never waits, never raises."""
        try:
            self._waiting.put_nowait(approval)
        except asyncio.QueueFull:
            self._give_up(approval, 0, "too many are waiting")

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work()) for _ in range(_WORKERS)]

    async def close(self, grace_s: float = 2.0) -> None:
        """Deliver what is queued, for at most `grace_s`, and give up the rest."""
        with suppress(TimeoutError):  # the rest is given up below, and counted
            await asyncio.wait_for(self._waiting.join(), grace_s)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        while not self._waiting.empty():
            self._give_up(self._waiting.get_nowait(), 0, "the hub stopped")
            self._waiting.task_done()
        await self._client.aclose()

    async def _work(self) -> None:
        while True:
            approval = await self._waiting.get()
            try:
                await self._deliver(approval)
            except asyncio.CancelledError:
                self._give_up(approval, 0, "the hub stopped")
                raise
            except Exception as defect:  # noqa: BLE001 - one question that cannot be delivered must not end the deliveries
                self._log.error(names.LOG_WEBHOOK_GIVEN_UP, approval_id=approval.approval_id, exc_info=defect)
            finally:
                self._waiting.task_done()

    async def _deliver(self, approval: Approval) -> None:
        body = payload(approval)
        for attempt in range(1, self._attempts + 1):
            trouble = await self._post(body)
            if trouble is None:
                return
            # Nobody can answer an expired question any more.
            is_last = attempt == self._attempts or self._clock.unix_ms() >= approval.expires_at_unix_ms
            if trouble.is_final or is_last:
                self._give_up(approval, attempt, trouble.cause)
                return
            # From 0 on ("full jitter"): several hubs must not come back at the same moment.
            await self._pause(self._randomness.uniform(0.0, min(_PAUSE_S * 2.0**attempt, _PAUSE_MAX_S)))

    async def _post(self, body: bytes) -> _DeliveryFailure | None:
        """Post it; return None when it was accepted. The response body is not read."""
        headers = self._headers(body)
        try:
            async with self._client.stream("POST", self._url, content=body, headers=headers) as answer:
                status = answer.status_code
        except httpx.HTTPError as broken:
            # Only the type: httpx puts the URL into some of its messages, and its path may be a secret.
            return _DeliveryFailure(type(broken).__name__, is_final=False)
        if 200 <= status < 300:
            return None
        return _DeliveryFailure(f"HTTP {status}", is_final=status < 500 and status not in _RETRIED)

    def _headers(self, body: bytes) -> dict[str, str]:
        timestamp = str(self._clock.unix_ms() // 1_000)
        return {
            "content-type": "application/json",
            "user-agent": f"tool-hub/{__version__}",
            "toolhub-timestamp": timestamp,
            "toolhub-signature": f"v1={signature(self._secret, timestamp, body)}",
        }

    def _give_up(self, approval: Approval, attempts: int, cause: str) -> None:
        self._log.error(
            names.LOG_WEBHOOK_GIVEN_UP,
            approval_id=approval.approval_id,
            host=self._url.host,  # not the whole URL: its path may be a secret
            attempts=attempts,
            cause=cause,
        )


class _DeliveryFailure(NamedTuple):
    """Why a delivery failed."""

    cause: str
    is_final: bool
    """Whether the endpoint would refuse a retry, too."""


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the hex HMAC-SHA256 over `<timestamp>.<body>`."""
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def payload(approval: Approval) -> bytes:
    """Return the question as JSON, with the names of the protobuf message's JSON form.

    Its receiver shows the texts to a person, in a chat or a mail: hidden characters in them are escaped.
    """
    binding = approval.binding
    asked: dict[str, object] = {
        "approvalId": approval.approval_id,
        "state": f"APPROVAL_STATE_{approval.state.value}",
        "principal": binding.principal,
        "tool": on_one_line(binding.tool),
        "toolVersion": approval.tool_version,
        "toolDigest": binding.tool_digest,
        "argsDigest": binding.args_digest,
        # As it is stored: the summary was redacted when it was made, and is JSON already.
        "argsSummary": orjson.Fragment(approval.args_summary_json),
        "policyRevision": binding.policy_revision,
        "ruleId": approval.rule_id,
        "reason": escape_hidden(approval.reason),
        "purpose": escape_hidden(approval.purpose),
        "callId": approval.call_id,
        "jobId": binding.job_id,
        "agentId": binding.agent_id,
        "userId": binding.user_id,
        "requestId": approval.request_id,
        "requestedAt": _iso(approval.requested_at_unix_ms),
        "expiresAt": _iso(approval.expires_at_unix_ms),
    }
    if (question := approval.question) is not None:
        asked["question"] = {
            "message": escape_hidden(question.message),
            "schema": question.schema,
            "round": approval.round,
        }
        asked["coversRuleId"] = approval.covers_rule_id
    return orjson.dumps({"type": "approval.asked", "approval": asked})


def _iso(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Metrics

_DECISIONS = (ApprovalState.APPROVED, ApprovalState.REJECTED)


class ApprovalTelemetry:
    """Implements `ApprovalObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        changes = metrics.family(names.APPROVALS)
        self._changes = {state: changes.labels(state.value) for state in ApprovalState}
        self._pending = metrics.family(names.APPROVALS_PENDING)
        self._seconds = metrics.family(names.APPROVAL_SECONDS)

    def on_change(self, approval: Approval) -> None:
        self._changes[approval.state].inc()
        if approval.state in _DECISIONS:
            # Different hubs may have written the two times, and their clocks may differ.
            self._seconds.observe(max(0, approval.decided_at_unix_ms - approval.requested_at_unix_ms) / 1_000)

    def pending(self, count: int) -> None:
        self._pending.set(count)
