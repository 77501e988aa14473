"""What `toolhub serve` says when a hub cannot start."""

from __future__ import annotations

import pytest

from toolhub_service.cli.serve import _told
from toolhub_service.domain.errors import ErrorKind, HubFailure, HubStatus, refuse


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (HubFailure(HubStatus.FAILED_PRECONDITION, "REDIS_EVICTS", "It forgets."), "It forgets."),
        (refuse(ErrorKind.TOOL_UNAVAILABLE, "The file is not ours."), "The file is not ours."),
        (
            refuse(ErrorKind.TOOL_UNAVAILABLE, "The store is away.", store="redis", reason="its memory is full"),
            "The store is away. Reason: its memory is full.",
        ),
    ],
)
def test_operator_is_told_what_is_wrong_with_the_store(refused: Exception, told: str) -> None:
    assert _told(refused) == told
