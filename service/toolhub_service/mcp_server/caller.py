"""The verified caller of a request, where handlers find it, and the refusal of a request whose caller is not."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from toolhub_service.domain.call import Principal

PRINCIPAL: Final = "toolhub.principal"
"""The entry of a request's scope that holds the verified caller."""
CALLER: Final[ContextVar[Principal | None]] = ContextVar("toolhub.mcp_caller", default=None)
"""The same, for code that is not given the request."""


class AccessRefused(Exception):
    """A request without a valid credential (401), without the role (403), or that cannot be verified now (503)."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        is_missing: bool = False,
        scope: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.is_missing = is_missing
        """Whether there was no credential at all."""
        self.scope = scope
        """Scopes, separated by spaces, that a valid token lacks."""
