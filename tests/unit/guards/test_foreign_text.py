"""Foreign text as it is shown: nothing in it controls a terminal, is out of sight, or begins a line of its own."""

from __future__ import annotations

import json
import sys

import pytest

from toolhub_service.guards.foreign_text import escape_hidden, has_controls, is_hidden, on_one_line, without_controls

HIDDEN = [
    *("\u200b", "\u200d", "\u202e", "\u2066", "\ufeff", "\u00ad", "\u180e"),  # format characters
    *("\U000e0041", "\ufe0f", "\U000e0100"),  # tags and variation selectors
    *("\x1b", "\x00", "\x9b", "\u2028"),  # controls and line separators
    *("\u3164", "\u115f", "\u2800"),  # letters that are drawn as blanks
    *("\ue000", "\U0010ffff", "\ud800"),  # private, unassigned, half a character
]


@pytest.mark.parametrize("character", HIDDEN, ids=lambda character: f"U+{ord(character):04X}")
def test_hidden_characters_are_escaped_as_in_json(character: str) -> None:
    assert is_hidden(character)
    shown = escape_hidden(f"a{character}b")
    assert character not in shown
    assert json.loads(f'"{shown}"') == f"a{character}b"


@pytest.mark.parametrize("text", ["plain", "zwei\nZeilen\tund mehr", "中文", "é e\u0301", "🙂", "ÿ ~ \\u200b"])
def test_visible_characters_are_not_escape_hidden(text: str) -> None:
    assert escape_hidden(text) == text


# What an attack uses, by what it does to a terminal or its reader.
ATTACKS = {
    "moves the cursor": "\x1b[2J\x1b[1;1H",
    "sets the title": "\x1b]0;x\x07",
    "writes the clipboard": "\x1b]52;c;eA==\x1b\\",
    "C1 control sequence": "\x9b2J",
    "erases what was shown": "shown\r\b\b",
    "deletes": "\x7f",
    "turns the reading direction": "\u202eabc\u202c\u2066\u2069\u200e\u200f\u061c",
    "zero width": "a\u200bb\u2060c\ufeff",
    "tags": "".join(chr(0xE0000 + ord(char)) for char in "run rm"),
    "line separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_nothing_that_acts_on_a_terminal_is_left_in_shown_text(text: str) -> None:
    for shown in (escape_hidden(text), on_one_line(text)):
        assert shown.isprintable()
        assert not has_controls(shown)


def test_a_line_end_begins_no_line_where_one_line_is_expected() -> None:
    assert on_one_line("x\n18:00:00  APPROVED\r\n\tann") == "x 18:00:00 APPROVED ann"


def test_escaping_keeps_the_meaning_of_json() -> None:
    value = {"\u202ekey": ["\x9b", "\U000e0041", "two\nlines", "\ud800"]}
    assert json.loads(escape_hidden(json.dumps(value, ensure_ascii=False))) == value


def test_escaped_text_is_not_changed_when_it_is_escaped_again() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    once = escape_hidden(every)
    assert escape_hidden(once) == once


def test_only_control_characters_are_taken_out_of_what_a_person_typed() -> None:
    assert without_controls("no\x1b[A, sorry\u202e\n\tsecond line 🙂") == "no[A, sorry\n\tsecond line 🙂"
