"""The webhook as its receiver sees it: signed, repeated until it is taken, given up aloud, and never in the way."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from tests.fakes.clock import FixedRandomness, ManualClock
from tests.fakes.http_server import Answer, RawServer, RecordedRequest, always, response, serving, silent_after
from tests.unit.runtime.approvals.approval_harness import EXPIRES_S, REJECTED, ApprovalHarness, an_approval_harness
from toolhub_service.domain.approval import Approval
from toolhub_service.guards.secrets import Redactor
from toolhub_service.telemetry.approvals import ApprovalTelemetry, ApprovalWebhook
from toolhub_service.telemetry.metrics import Metrics

SECRET = b"a secret of the operator's"
CANARY = "c4nary-7f31-value"
TAKEN = response(status=204)
ACCEPTING = always(TAKEN)


@dataclass
class WebhookHarness:
    harness: ApprovalHarness
    server: RawServer
    hook: ApprovalWebhook
    log: CapturingLogger
    pauses_s: list[float] = field(default_factory=list)

    async def ask(self, text: str = "hello", **fields: Any) -> Approval:
        await self.harness.ask(text, **fields)
        return self.harness.asked[-1]

    async def delivered(self) -> None:
        """Everything that waited has been sent, or given up."""
        async with asyncio.timeout(60):
            await self.hook._waiting.join()

    @property
    def given_up(self) -> list[dict[str, Any]]:
        return [call.kwargs for call in self.log.calls]


@asynccontextmanager
async def started_harness(answer: Answer = ACCEPTING, url: str = "", **terms: Any) -> AsyncIterator[WebhookHarness]:
    async with serving(answer) as server:
        harness = an_approval_harness(redactor=Redactor([CANARY]))
        log, pauses_s = CapturingLogger(), list[float]()

        async def pause(seconds: float) -> None:
            pauses_s.append(seconds)
            await asyncio.sleep(0)

        hook = ApprovalWebhook(
            url or server.url("/hooks/T0/secret-path"),
            SECRET,
            **{
                "clock": harness.parts.clock,
                "randomness": FixedRandomness(1.0),
                "log": log,
                "pause": pause,
                **terms,
            },
        )
        harness.listeners.append(hook.offer)
        webhook_harness = WebhookHarness(harness, server, hook, log, pauses_s)
        hook.start()
        try:
            yield webhook_harness
        finally:
            await hook.close()


def turns(*answers: bytes) -> Answer:
    """One answer after the other, the last for ever."""
    left = list(answers)

    async def answer(_: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        return False

    return answer


def is_signed(asked: RecordedRequest, secret: bytes = SECRET) -> bool:
    """As a receiver checks it, with nothing of ours."""
    timestamp = asked.headers["toolhub-timestamp"]
    version, _, signature = asked.headers["toolhub-signature"].partition("=")
    expected = hmac.new(secret, f"{timestamp}.".encode() + asked.body, hashlib.sha256).hexdigest()
    return version == "v1" and hmac.compare_digest(signature, expected)


@pytest.mark.promise("approval.webhook-signed")
async def test_question_is_posted_with_a_signature_that_its_receiver_can_check() -> None:
    async with started_harness() as webhook_harness:
        approval = await webhook_harness.ask("hello", purpose="tidy up")
        await webhook_harness.delivered()
        (asked,) = webhook_harness.server.asked
    assert (asked.method, asked.headers["content-type"]) == ("POST", "application/json")
    assert is_signed(asked)
    assert not is_signed(asked, b"another secret, also long")
    assert asked.headers["toolhub-timestamp"] == "1700000000"
    sent = json.loads(asked.body)
    assert sent["type"] == "approval.asked"
    assert sent["approval"]["approvalId"] == approval.approval_id
    assert sent["approval"]["argsSummary"] == {"text": "hello", "times": 1}
    assert sent["approval"]["purpose"] == "tidy up"
    assert sent["approval"]["expiresAt"] == "2023-11-14T22:23:20.000Z"
    assert not webhook_harness.given_up


async def test_every_question_is_announced_once() -> None:
    async with started_harness() as webhook_harness:
        for number in range(20):
            await webhook_harness.ask(str(number))
        await webhook_harness.ask("19", number=2)
        await webhook_harness.delivered()
        ids = [json.loads(asked.body)["approval"]["approvalId"] for asked in webhook_harness.server.asked]
    assert sorted(ids) == sorted({approval.approval_id for approval in webhook_harness.harness.asked})


@pytest.mark.parametrize("status", [500, 503, 408, 429])
async def test_endpoint_that_is_down_is_asked_again_with_growing_pauses_and_new_signatures(status: int) -> None:
    async with started_harness(turns(response(status=status), response(status=status), TAKEN)) as webhook_harness:
        await webhook_harness.ask()
        await webhook_harness.delivered()
        assert len(webhook_harness.server.asked) == 3
        assert all(is_signed(asked) for asked in webhook_harness.server.asked)
        assert webhook_harness.pauses_s == [1.0, 2.0]
        assert not webhook_harness.given_up


@pytest.mark.parametrize("status", [301, 400, 401, 404, 410])
async def test_refusal_and_redirect_are_final(status: int) -> None:
    async with started_harness(always(response(status=status, location="/elsewhere"))) as webhook_harness:
        approval = await webhook_harness.ask()
        await webhook_harness.delivered()
        assert len(webhook_harness.server.asked) == 1
        (logged,) = webhook_harness.given_up
    assert (logged["approval_id"], logged["attempts"], logged["cause"]) == (approval.approval_id, 1, f"HTTP {status}")


async def test_an_endpoint_that_never_recovers_is_given_up_with_a_log_line_without_its_path() -> None:
    async with started_harness(turns(response(status=500)), attempts=4) as webhook_harness:
        await webhook_harness.ask()
        await webhook_harness.delivered()
        assert len(webhook_harness.server.asked) == 4
        (logged,) = webhook_harness.given_up
    assert (logged["attempts"], logged["cause"], logged["host"]) == (4, "HTTP 500", "127.0.0.1")
    assert "secret-path" not in repr(webhook_harness.log.calls)
    assert SECRET.decode() not in repr(webhook_harness.log.calls)


async def test_endpoint_that_is_not_there_is_given_up() -> None:
    async with started_harness(url="http://127.0.0.1:1/hook", attempts=2) as webhook_harness:
        await webhook_harness.ask()
        await webhook_harness.delivered()
        assert [logged["cause"] for logged in webhook_harness.given_up] == ["ConnectError"]


async def test_a_lapsed_question_is_not_repeated_for_ever() -> None:
    async with started_harness(turns(response(status=500))) as webhook_harness:
        await webhook_harness.ask()
        webhook_harness.harness.parts.clock.advance(10_000)
        await webhook_harness.delivered()
        assert len(webhook_harness.server.asked) == 1
        assert len(webhook_harness.given_up) == 1


@pytest.mark.promise("approval.webhook-signed")
async def test_endpoint_that_hangs_delays_no_call_and_no_more_than_a_bound_waits() -> None:
    async with started_harness(silent_after(b""), max_waiting=3) as webhook_harness:
        for number in range(30):
            await webhook_harness.ask(str(number))  # each is answered at once
        dropped = len(webhook_harness.given_up)
        assert dropped >= 30 - 3 - 4, "three wait, four are under way"
        assert {logged["cause"] for logged in webhook_harness.given_up} == {"too many are waiting"}
        await webhook_harness.hook.close(grace_s=0.01)
        assert len(webhook_harness.given_up) == 30
        assert {logged["cause"] for logged in webhook_harness.given_up[dropped:]} == {"the hub stopped"}


async def test_waiting_notifications_are_sent_when_the_hub_stops() -> None:
    async with started_harness() as webhook_harness:
        for number in range(10):
            await webhook_harness.ask(str(number))
        await webhook_harness.hook.close(grace_s=20)
        assert len(webhook_harness.server.asked) == 10
        assert not webhook_harness.given_up


@pytest.mark.promise("secrets.nowhere")
async def test_the_canary_never_leaves_the_hub() -> None:
    async with started_harness() as webhook_harness:
        await webhook_harness.ask(f"hello {CANARY}", purpose=f"use {CANARY}")
        await webhook_harness.delivered()
        (asked,) = webhook_harness.server.asked
    assert CANARY.encode() not in asked.body
    assert b"***" in asked.body
    assert SECRET not in asked.body + repr(asked.headers).encode()


@pytest.mark.parametrize(
    ("url", "secret", "wrong"),
    [
        ("http://127.0.0.1/", b"short", "16"),
        ("ftp://127.0.0.1/", SECRET, "http"),
        ("no url", SECRET, "http"),
        ("https:///path", SECRET, "host"),
    ],
)
def test_webhook_that_cannot_work_is_refused_at_the_start(url: str, secret: bytes, wrong: str) -> None:
    make: Callable[..., object] = ApprovalWebhook
    with pytest.raises(ValueError, match=wrong):
        make(url, secret, clock=ManualClock(), randomness=FixedRandomness(), log=CapturingLogger())


async def test_every_change_is_counted_once_and_the_wait_for_a_person_measured() -> None:
    metrics = Metrics(version="1")
    harness = an_approval_harness(observer=ApprovalTelemetry(metrics))
    granted = await harness.ask("a")
    await harness.ask("a", number=2)
    harness.parts.clock.advance(30)
    await harness.decide(granted)
    await harness.decide(granted)
    assert (await harness.call("a", number=3, approval_id=granted)).ok
    await harness.decide(await harness.ask("b"), REJECTED)
    await harness.ask("c")
    harness.parts.clock.advance(EXPIRES_S)
    await harness.ask("d")
    await harness.approvals.sweep()
    exposition = metrics.exposition().decode()
    for state, count in (("PENDING", 4), ("APPROVED", 1), ("USED", 1), ("REJECTED", 1), ("EXPIRED", 1)):
        assert f'toolhub_approvals_total{{state="{state}"}} {count}.0' in exposition
    assert "toolhub_approvals_pending 1.0" in exposition
    assert "toolhub_approval_decision_seconds_sum 30.0" in exposition
    assert "toolhub_approval_decision_seconds_count 2.0" in exposition
