"""The verifier of webhooks that docs/secure.md shows, run against what the hub really sends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ports.approval_store_suite import an_approval
from tests.unit.docs.pages_of_docs import DOCS, fences
from toolhub_service.telemetry.approvals import payload, signature

SECRET, NOW_S = b"a secret of many bytes", 1_700_000_000.0


def question_of(headers: dict[str, str], body: bytes, now_s: float = NOW_S) -> dict[str, Any]:
    (snippet,) = (block for block in fences(DOCS / "secure.md", "python") if "toolhub-signature" in block)
    namespace: dict[str, Any] = {}
    exec(compile(snippet, "secure.md", "exec"), namespace)
    asked: dict[str, Any] = namespace["question_of"](headers, body, SECRET, now_s)
    return asked


def signed(body: bytes, secret: bytes = SECRET) -> dict[str, str]:
    timestamp = str(int(NOW_S))
    return {"toolhub-timestamp": timestamp, "toolhub-signature": f"v1={signature(secret, timestamp, body)}"}


def test_what_the_hub_sends_is_taken() -> None:
    body = payload(an_approval())
    assert question_of(signed(body), body)["approvalId"] == an_approval().approval_id


@pytest.mark.parametrize("off_s", [-301.0, 301.0])
def test_what_is_old_or_from_the_future_is_refused(off_s: float) -> None:
    body = payload(an_approval())
    with pytest.raises(ValueError, match="old"):
        question_of(signed(body), body, NOW_S + off_s)


@pytest.mark.promise("approval.webhook-signed")
def test_what_was_changed_or_signed_by_another_is_refused() -> None:
    body = payload(an_approval())
    for headers, body_received in ((signed(body), body + b" "), (signed(body, b"another secret of many bytes"), body)):
        with pytest.raises(ValueError, match="signature"):
            question_of(headers, body_received)
