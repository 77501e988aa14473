"""Texts that are too long: what is shown ends where a sentence or a word ends, and says how much is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.domain.excerpts import excerpt

SENTENCES = "The server is away. It comes back at ten. Send the call again then, with the same key. Or leave it."


@pytest.mark.parametrize(
    ("text", "max_chars", "expected"),
    [
        (SENTENCES, 200, SENTENCES),
        (SENTENCES, len(SENTENCES), SENTENCES),
        (SENTENCES, 90, "The server is away. It comes back at ten.… [58 more characters]"),
        ("first line\nsecond line " + "x" * 100, 64, "first line… [113 more characters]"),
        ("one two three four " * 10, 64, "one two three four one two three four… [153 more characters]"),
        ("x" * 100, 64, "x" * 41 + "… [59 more characters]"),
        ("版本错误。请升级。" + "再" * 100, 64, "版本错误。请升级。… [100 more characters]"),
    ],
)
def test_a_long_text_ends_with_a_whole_sentence_or_word_and_a_count(text: str, max_chars: int, expected: str) -> None:
    assert excerpt(text, max_chars) == expected


@given(st.text(), st.integers(64, 200))
def test_an_excerpt_is_a_beginning_within_its_limit(text: str, max_chars: int) -> None:
    shown = excerpt(text, max_chars)
    assert len(shown) <= max_chars
    assert shown == text or text.startswith(shown.rpartition("… [")[0])
