"""What a server sends back to a call with its caller's own credential."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from tests.fakes.artifacts import a_call
from toolhub_service.adapters.callers import run_masked
from toolhub_service.adapters.upstream import keep_bytes
from toolhub_service.credentials.secret import CallerCredential
from toolhub_service.domain.credential import CredentialKind
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import Outcome

SECRET = "the-secret-of-alice"


class FullArtifacts:
    """Stands for artifacts of which there is no room any more: what is kept here is all that is asked about."""

    def __init__(self) -> None:
        self.data = b""

    async def keep(self, chunks: AsyncIterator[bytes], **_: Any) -> None:
        self.data = b"".join([chunk async for chunk in chunks])
        raise refuse(ErrorKind.BUDGET_EXCEEDED, "full")


async def test_bytes_that_become_an_artifact_do_not_hold_the_callers_secret() -> None:
    kept = FullArtifacts()
    credential = CallerCredential("authorization", f"Bearer {SECRET}", SECRET, "0" * 32, CredentialKind.HEADER)

    async def run(_: Any) -> Outcome:
        await keep_bytes(f"you are {SECRET}".encode(), a_call(), cast(Any, kept))
        return Outcome(None)

    await run_masked(credential, lambda: None, cast(Any, None), run)
    assert kept.data == b"you are ***"
    await run(None)
    assert kept.data == f"you are {SECRET}".encode(), "of another call nothing is hidden"
