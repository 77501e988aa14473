"""Plan digests: a sealed promise that what was shown in a dry run is what will run, checked without any store.

    v1.<expires_at_unix_ms>.<principal>-<tool>-<arguments>-<policy>.<mac>

Each part of the middle is a keyed short digest (HMAC-SHA256 cut to 16 bytes, hex) of what it names, and the mac
(HMAC-SHA256, base64url) covers all before it. Any replica with the key can check a digest and say *which* part differs;
the key in the parts keeps a caller from searching for two argument lists with one digest. A digest is not single-use:
within its time it allows the same call again, so a call that must happen once carries an idempotency key too.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from dataclasses import replace
from hashlib import sha256

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.verdict import Effect, Verdict

VERSION = "v1"
_MAX_CHARS = 512
_PART_BYTES = 16

_DIFFERENCES = {
    "principal": "it was made for another caller",
    "tool definition": "the tool's definition has changed",
    "arguments": "the arguments are not the ones that were shown",
    "policy verdict": "the policy has changed or decides by another rule",
}


def seal(planned: PlannedCall, verdict: Verdict, expires_at_unix_ms: int, key: bytes) -> str:
    """The digest of what a dry run showed. `planned.args_digest` must be set; `key` is shared by all replicas."""
    body = f"{VERSION}.{expires_at_unix_ms}.{'-'.join(_parts(planned, verdict, key).values())}"
    return f"{body}.{_mac(body, key)}"


def check(digest: str, planned: PlannedCall, verdict: Verdict, now_unix_ms: int, key: bytes) -> None:
    """Whether a call with this digest is the one that was shown.

    Raises ToolFailure PLAN_REQUIRED; `details.differs` lists what is not as it was shown: `principal`,
    `tool definition`, `arguments`, `policy verdict`, or `expired` or `forged`.
    """
    expires_at_unix_ms, sealed = _opened(digest, key)
    current = _parts(planned, verdict, key)
    if len(sealed) != len(current):
        raise _refused(["forged"], "it is not one of this hub's")
    differs = [name for (name, part), shown in zip(current.items(), sealed, strict=True) if part != shown]
    if differs:
        raise _refused(differs, "; ".join(_DIFFERENCES[name] for name in differs))
    if now_unix_ms >= expires_at_unix_ms:
        raise _refused(["expired"], "it has expired")


def committed(verdict: Verdict) -> Verdict:
    """What a REQUIRE_PLAN verdict becomes once its plan digest has been checked; other verdicts stay as they are."""
    if verdict.effect is not Effect.REQUIRE_PLAN:
        return verdict
    return replace(verdict, effect=Effect.ALLOW, reason="The plan that was shown is committed.", remedy="")


def _opened(digest: str, key: bytes) -> tuple[int, list[str]]:
    body, _, mac = digest.rpartition(".")
    pieces = body.split(".")
    is_ours = len(digest) <= _MAX_CHARS and digest.isascii() and hmac.compare_digest(mac, _mac(body, key))
    if not is_ours or len(pieces) != 3 or pieces[0] != VERSION:
        raise _refused(["forged"], "it is not one of this hub's, or it was damaged on the way")
    return int(pieces[1]), pieces[2].split("-")


def _parts(planned: PlannedCall, verdict: Verdict, key: bytes) -> dict[str, str]:
    if not planned.args_digest:
        raise ValueError("a plan needs the digest of its arguments")
    decided = f"{verdict.policy_revision}\n{verdict.effect.value}\n{verdict.rule_id}"
    named = {
        "principal": planned.call.principal.id,
        "tool definition": f"{planned.spec.name}\n{planned.spec.digest}",
        "arguments": planned.args_digest,
        "policy verdict": decided,
    }
    return {name: _keyed(f"{name}\n{value}", key)[: _PART_BYTES * 2] for name, value in named.items()}


def _keyed(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()


def _mac(body: str, key: bytes) -> str:
    digest = hmac.new(key, f"plan\n{body}".encode("utf-8", "surrogatepass"), sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def _refused(differs: list[str], why: str) -> ToolFailure:
    return refuse(
        ErrorKind.PLAN_REQUIRED,
        f"The plan_digest does not fit this call: {why}. Invoke with mode DRY_RUN again and send the new plan_digest.",
        differs=list(differs),
    )
