"""No idempotency keys at all, and honest about it: for a hub of several processes that share no store.

A key that only the process it happens to reach remembers would be a promise that holds now and then.
"""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, refuse
from toolhub_service.domain.key import EffectKey, KeyRecord
from toolhub_service.domain.result import ToolResult


class NoKeys:
    """Implements `KeyStore` as one that can never be reached: what must not happen twice is refused."""

    async def claim(self, key: EffectKey, record: KeyRecord, *, replacing: str = "") -> KeyRecord | None:
        raise refuse(
            ErrorKind.TOOL_UNAVAILABLE,
            f"This hub runs several workers that share no idempotency keys, so it cannot keep {key.tool} from having "
            "its effect twice. Send the call without a key if that does no harm; an operator can set server.workers "
            "to 1.",
            retryable=False,
            reason="several workers share no idempotency keys",
        )

    async def settle(self, key: EffectKey, owner: str, result: ToolResult, expires_at_unix_ms: int) -> bool:
        return False

    async def release(self, key: EffectKey, owner: str) -> bool:
        return False

    async def ended(self, key: EffectKey, owner: str, timeout_s: float) -> bool:
        return True
