"""Watches of the command line under a token that expires."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from toolhub_service.cli.connection.watching import resume_watch
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.status import RpcFailure, details_trailer


class Expired(grpc.RpcError):
    """As a stub raises it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return "The token has expired."

    def trailing_metadata(self) -> Any:
        return (details_trailer(RpcFailure(Reason.CREDENTIAL_REFUSED, self.details(), {"problem": "expired"})),)


@pytest.mark.promise("cli.login")
def test_a_watch_goes_on_under_a_new_token_and_ends_when_the_old_one_is_refused_at_once() -> None:
    held_s, now_s = [3_600.0, 3_600.0, 0.1], [0.0]

    def watch() -> Iterator[str]:
        yield "opened"
        now_s[0] += held_s.pop(0)
        raise Expired

    received: list[str] = []
    with pytest.raises(Expired):
        received.extend(resume_watch(watch, 1.0, lambda _: None, lambda _: None, lambda: now_s[0]))
    assert received == ["opened"] * 3
