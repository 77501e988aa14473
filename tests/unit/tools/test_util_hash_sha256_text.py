from __future__ import annotations

import pytest

from tests.fakes.util_context import bare_context, called
from toolhub_service.tools.util_tools import HashSha256Text


@pytest.mark.parametrize(
    ("text", "digest"),  # FIPS 180-2 and RFC 6234 vectors, and one of UTF-8
    [
        ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ("ä", "33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc"),
    ],
)
async def test_the_digest_is_over_the_utf8_bytes(text: str, digest: str) -> None:
    context = bare_context()
    assert await called(HashSha256Text(), context, text=text) == {"sha256": digest}
    assert context.evidence[0].sha256 == digest
