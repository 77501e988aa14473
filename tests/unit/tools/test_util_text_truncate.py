from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.util_context import bare_context, called
from toolhub_service.tools.util_tools import TextTruncate, truncate


async def test_a_short_text_comes_back_unchanged() -> None:
    context = bare_context()
    result = await called(TextTruncate(), context, text="abc", maxChars=3)
    assert result == {"text": "abc", "truncated": False, "totalChars": 3}
    assert not context.truncated
    assert len(context.evidence) == 1


async def test_a_long_text_is_cut_with_a_marker_within_the_limit() -> None:
    context = bare_context()
    result = await called(TextTruncate(), context, text="abcdefgh", maxChars=5)
    assert result == {"text": "abcd…", "truncated": True, "totalChars": 8}
    assert context.truncated
    assert (await called(TextTruncate(), text="abcdefgh", maxChars=5, marker=""))["text"] == "abcde"
    assert (await called(TextTruncate(), text="abcdefgh", maxChars=6, marker="[cut]"))["text"] == "a[cut]"


async def test_a_marker_without_room_is_left_out() -> None:
    assert (await called(TextTruncate(), text="abcdefgh", maxChars=3, marker="[cut]"))["text"] == "abc"


@pytest.mark.parametrize(
    ("text", "max_chars", "kept"),
    [
        ("ae\u0301xyz", 2, "a"),  # an accent stays with its letter
        ("a👍🏽xyz", 2, "a"),  # a skin tone stays with its hand
        ("a👨\u200d👩\u200d👧xyz", 4, "a"),  # a family is not parted
        ("a🇩🇪🇫🇷z", 4, "a🇩🇪"),  # half a flag is another letter
        ("a🇩🇪🇫🇷z", 3, "a🇩🇪"),
        ("a\r\nb", 2, "a"),
        ("abc\U0001f600d", 4, "abc\U0001f600"),
    ],
)
def test_a_grapheme_cluster_is_not_split(text: str, max_chars: int, kept: str) -> None:
    assert truncate(text, max_chars, "") == (kept, True)


def test_endless_combining_marks_are_cut() -> None:
    assert len(truncate("a" + "\u0301" * 1000, 500, "")[0]) == 500


@given(st.text(), st.integers(1, 20), st.text(max_size=5))
def test_the_result_is_a_beginning_within_the_limit(text: str, max_chars: int, marker: str) -> None:
    kept, cut = truncate(text, max_chars, marker)
    assert len(kept) <= max_chars
    assert cut == (len(text) > max_chars)
    if cut:
        assert text.startswith(kept) or (kept.endswith(marker) and text.startswith(kept[: len(kept) - len(marker)]))
    else:
        assert kept == text
