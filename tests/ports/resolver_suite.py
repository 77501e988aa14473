"""What every `Resolver` keeps to."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

import pytest

from toolhub_service.domain.ports import Resolver


async def check_resolver(resolver: Resolver, *, known: str, unknown: str) -> Sequence[str]:
    """`known` has at least one address, `unknown` has none; those of `known`."""
    answers = await resolver.resolve(known, 443)
    assert answers
    assert [str(ip_address(answer)) for answer in answers] == list(answers)
    assert len(set(answers)) == len(answers)
    with pytest.raises(OSError):  # noqa: PT011  the port promises no more than this
        await resolver.resolve(unknown, 443)
    return answers
