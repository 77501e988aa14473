"""A plan digest proves, without any store, that what was shown in a dry run is what will run.

    v2.<expires_at_unix_ms>.<principal>-<tool>-<arguments>-<policy>-<workspace>-<state>.<mac>

Each part of the middle is a keyed short digest (HMAC-SHA256 cut to 16 bytes, hex) of its subject, and the mac
(HMAC-SHA256, base64url) covers all before it. Any replica with the key can check a digest and say *which* part
differs; the key in the parts keeps a caller from searching for two argument lists with one digest. A digest is not
single-use: until it expires it allows the same call again, so a call that must happen once carries an idempotency key
too. Version 1 had neither workspace nor state and is refused.

A plan that a model commits has a short digest, which it can copy without a fault:

    plan_<base32 of: expires_at_unix_s (4 bytes), mac (12 bytes), state (9 bytes)>

Its mac covers the same parts, so it binds the same and needs no store either, but it cannot say which part differs.
"""

from __future__ import annotations

import hmac
from base64 import b32decode, b32encode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256

from msgspec import structs

from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.verdict import Effect, Verdict

VERSION = "v2"
SHORT_PREFIX = "plan_"
_SHORT_EXPIRY_BYTES = 4
_SHORT_MAC_BYTES = 12
_SHORT_STATE_BYTES = 9
_MAX_CHARS = 512
_PART_BYTES = 16

_STATE = "state"
_DIFFERENCES = {
    "principal": "it was made for another caller",
    "tool definition": "the tool's definition has changed",
    "arguments": "the arguments are not the ones that were shown",
    "policy verdict": "the policy has changed or decides by another rule",
    "workspace": "it was made for another workspace: send the request_id or session_id of the dry run",
    _STATE: "what the call would destroy, overwrite or move has changed since it was shown",
}


def seal(planned: PlannedCall, verdict: Verdict, expires_at_unix_ms: int, key: bytes) -> str:
    """Return the digest of what a dry run showed. `planned.args_digest` must be set; all replicas share `key`."""
    body = f"{VERSION}.{expires_at_unix_ms}.{'-'.join(_parts(planned, verdict, key).values())}"
    return f"{body}.{_mac(body, key)}"


def check(digest: str, planned: PlannedCall, verdict: Verdict, now_unix_ms: int, key: bytes) -> None:
    """Check that a call with this digest is the one that was shown; the state is checked by `is_stale`.

    Raises ToolFailure PLAN_REQUIRED; `details.differs` lists what differs: `principal`, `tool definition`, `arguments`,
    `policy verdict`, `workspace`, or `expired`, `forged` or `version`; of a short digest `call` in place of the first
    five.
    """
    current = _parts(planned, verdict, key)
    if digest.startswith(SHORT_PREFIX):
        _check_short(digest, current, now_unix_ms, key)
        return
    expires_at_unix_ms, sealed = open_digest(digest, key)
    if len(sealed) != len(current):
        raise refuse_digest(["forged"], "it was not issued by this hub")
    compared = zip(current.items(), sealed, strict=True)
    differs: list[JsonValue] = [name for (name, part), shown in compared if part != shown and name != _STATE]
    # Before the expiry, so that the plan of another call is reported as such, however old it is.
    if differs:
        raise refuse_digest(differs, "; ".join(_DIFFERENCES[str(name)] for name in differs))
    if now_unix_ms >= expires_at_unix_ms:
        raise refuse_digest(["expired"], "it has expired")


def is_stale(digest: str, planned: PlannedCall, verdict: Verdict, key: bytes) -> bool:
    """Return whether what the call would destroy has changed since the plan was shown; the digest must have been
    checked."""
    current = _parts(planned, verdict, key)[_STATE]
    if digest.startswith(SHORT_PREFIX):
        return not hmac.compare_digest(_short_pieces(digest)[2], _short_state(current))
    return open_digest(digest, key)[1][-1] != current


def shorten(digest: str, key: bytes) -> str:
    """Return the short digest of the same plan; `digest` is one of `seal`."""
    expires_at_unix_ms, parts = open_digest(digest, key)
    expiry = (expires_at_unix_ms // 1_000).to_bytes(_SHORT_EXPIRY_BYTES, "big")
    state = _short_state(parts[-1])
    token = expiry + _short_mac(parts[:-1], expiry, state, key) + state
    return SHORT_PREFIX + b32encode(token).decode().lower()


def _check_short(digest: str, current: dict[str, str], now_unix_ms: int, key: bytes) -> None:
    expiry, mac, state = _short_pieces(digest)
    parts = [part for name, part in current.items() if name != _STATE]
    if not hmac.compare_digest(mac, _short_mac(parts, expiry, state, key)):
        raise refuse_digest(
            ["call"], "it was made for another call, caller or workspace, or the tool or the policy has changed"
        )
    if now_unix_ms >= int.from_bytes(expiry, "big") * 1_000:
        raise refuse_digest(["expired"], "it has expired")


def _short_pieces(digest: str) -> tuple[bytes, bytes, bytes]:
    """Return expiry, mac and state of a short digest. Raises PLAN_REQUIRED for what cannot be one."""
    text = digest.removeprefix(SHORT_PREFIX)
    mac_end = _SHORT_EXPIRY_BYTES + _SHORT_MAC_BYTES
    try:
        token = b32decode(text.upper().encode("ascii")) if len(text) <= _MAX_CHARS else b""
    except ValueError:
        token = b""
    if len(token) != mac_end + _SHORT_STATE_BYTES:
        raise refuse_digest(["forged"], "it was not issued by this hub, or was changed on the way")
    return token[:_SHORT_EXPIRY_BYTES], token[_SHORT_EXPIRY_BYTES:mac_end], token[mac_end:]


def _short_state(part: str) -> bytes:
    return bytes.fromhex(part)[:_SHORT_STATE_BYTES]


def _short_mac(parts: Sequence[str], expiry: bytes, state: bytes, key: bytes) -> bytes:
    bound = f"short plan\n{expiry.hex()}\n{'-'.join(parts)}\n{state.hex()}"
    return hmac.new(key, bound.encode(), sha256).digest()[:_SHORT_MAC_BYTES]


def stale(sealed: str, effects: Sequence[str], ttl_s: float) -> ToolFailure:
    """PLAN_REQUIRED with what the call would do now, and the digest that commits it."""
    return refuse_digest(
        [_STATE],
        _DIFFERENCES[_STATE],
        "details.effects says what the call would do now. To do that, invoke with details.plan_digest.",
        effects=list(effects),
        plan_digest=sealed,
        expires_in_s=ttl_s,
    )


def commit_verdict(verdict: Verdict) -> Verdict:
    """Return what a REQUIRE_PLAN verdict becomes once its plan digest has been checked; other verdicts are
    unchanged."""
    if verdict.effect is not Effect.REQUIRE_PLAN:
        return verdict
    return structs.replace(verdict, effect=Effect.ALLOW, reason="The plan that was shown is committed.", remedy="")


def open_digest(digest: str, key: bytes) -> tuple[int, list[str]]:
    body, _, mac = digest.rpartition(".")
    pieces = body.split(".")
    # compare_digest accepts ASCII only, and a caller's text may have any length: hash no more than a digest of ours can
    # have.
    is_ours = len(digest) <= _MAX_CHARS and digest.isascii() and hmac.compare_digest(mac, _mac(body, key))
    if is_ours and pieces[0] == "v1":
        raise refuse_digest(
            ["version"], "it was made by an earlier version of the hub, which did not record workspace and state"
        )
    if not is_ours or len(pieces) != 3 or pieces[0] != VERSION:
        raise refuse_digest(["forged"], "it was not issued by this hub, or was changed on the way")
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
        "workspace": planned.preconditions.workspace,
        _STATE: planned.preconditions.state,
    }
    return {name: keyed_digest(f"{name}\n{value}", key)[: _PART_BYTES * 2] for name, value in named.items()}


# Keyed, because otherwise a holder of a digest could find out its arguments by trying.
def keyed_digest(text: str, key: bytes) -> str:
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), sha256).hexdigest()


def _mac(body: str, key: bytes) -> str:
    digest = hmac.new(key, f"plan\n{body}".encode("utf-8", "surrogatepass"), sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


_AGAIN = "Invoke with mode DRY_RUN again and send the new plan_digest."


def refuse_digest(differs: list[JsonValue], why: str, remedy: str = _AGAIN, **facts: JsonValue) -> ToolFailure:
    message = f"The plan does not fit this call: {why}. {remedy}"
    details: JsonObject = {"differs": differs, **facts}
    return ToolFailure(ToolError(kind=ErrorKind.PLAN_REQUIRED, message=message, details=details))
