"""Texts that are too long: what is shown ends where a sentence or a word ends, and says how much is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.domain.excerpts import both_ends, excerpt

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


TRACEBACK = "Traceback (last call last):\n" + '  File "x.py", line 3, in f\n' * 100 + "ValueError: no owner given"


def test_of_a_long_error_both_ends_are_shown_with_the_count_of_what_is_left_out() -> None:
    shown = both_ends(TRACEBACK, 300)
    beginning, _, end = shown.partition("… [")
    assert TRACEBACK.startswith(beginning)
    assert end.endswith('\n  File "x.py", line 3, in f\nValueError: no owner given')
    count, _, end = end.partition(" more characters]\n")
    assert int(count.replace(",", "")) == len(TRACEBACK) - len(beginning) - len(end)
    assert f"… [{1_000_000 + int(count.replace(',', '')):,} more" in both_ends(TRACEBACK, 303, left_out=1_000_000)


@given(st.text(), st.integers(64, 400), st.sampled_from([0, 10**6]))
def test_both_ends_stay_within_their_limit(text: str, max_chars: int, left_out: int) -> None:
    shown = both_ends(text, max_chars, left_out=left_out if len(text) > max_chars else 0)
    assert len(shown) <= max_chars
