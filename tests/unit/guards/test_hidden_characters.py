from __future__ import annotations

import json

import pytest

from toolhub_service.guards.hidden_characters import escaped, is_hidden

HIDDEN = [
    *("\u200b", "\u200d", "\u202e", "\u2066", "\ufeff", "\u00ad", "\u180e"),  # format characters
    *("\U000e0041", "\ufe0f", "\U000e0100"),  # tags and variation selectors
    *("\x1b", "\x00", "\x9b", "\u2028"),  # controls and line separators
    *("\u3164", "\u115f", "\u2800"),  # letters that are drawn as blanks
    *("\ue000", "\U0010ffff", "\ud800"),  # private, unassigned, half a character
]


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"U+{ord(character):04X}")
def test_what_shows_nothing_is_written_as_json_writes_it(character: str) -> None:
    assert is_hidden(character)
    shown = escaped(f"a{character}b")
    assert character not in shown
    assert json.loads(f'"{shown}"') == f"a{character}b"


@pytest.mark.parametrize("text", ["plain", "zwei\nZeilen\tund mehr", "中文", "é e\u0301", "🙂", "ÿ ~ \\u200b"])
def test_what_shows_something_stays(text: str) -> None:
    assert escaped(text) == text
