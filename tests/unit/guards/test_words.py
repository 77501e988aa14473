from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.outcomes import outcome
from toolhub_service.domain.errors import ErrorKind, ToolError, ToolFailure
from toolhub_service.guards.words import MAX_COMMAND_CHARS, split_command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls -l src", ["ls", "-l", "src"]),
        ("  ls \t -l  ", ["ls", "-l"]),
        ("echo 'a  b' \"c d\"e", ["echo", "a  b", "c de"]),
        ("echo ''", ["echo", ""]),
        (r"echo a\ b \$HOME", ["echo", "a b", "$HOME"]),
        (r'echo "a\"b\\c\$d\e"', ["echo", r'a"b\c$d\e']),
        ("echo '$(id) `id` ; | & > *'", ["echo", "$(id) `id` ; | & > *"]),
        ('echo "; | & > * ~ {a,b} #"', ["echo", "; | & > * ~ {a,b} #"]),
        ("echo a~b c#d x=y ! ] }", ["echo", "a~b", "c#d", "x=y", "!", "]", "}"]),
        ("echo größe 日本", ["echo", "größe", "日本"]),
    ],
)
def test_words_are_those_that_a_shell_would_make(text: str, words: list[str]) -> None:
    assert split_command(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "a;b",
        "a|b",
        "a&&b",
        "a&",
        "a<b",
        "a>b",
        "(a)",
        "a $b",
        "a `b`",
        'a "$b"',
        'a "`b`"',
        "ls *.py",
        "ls ?",
        "ls [ab]",
        "ls ~/x",
        "ls {a,b}",
        "ls # x",
        "a $(b)",
        "a || b",
        "a >> b",
        "a 2>&1",
    ],
)
def test_what_only_a_shell_understands_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        split_command(text)
    error = caught.value.error
    assert error.kind is ErrorKind.INVALID_INPUT
    assert "No shell runs here" in error.message
    assert text[int(str(error.details["position"]))] == error.details["character"]


@pytest.mark.parametrize(
    "text", ["", "  \t", "a 'b", 'a "b', "a \\", "a\nb", "a\0b", "'a\nb'", '"a\rb"', "a\\\nb", "a\x7fb", "a\x85b"]
)
def test_empty_unfinished_and_multi_line_commands_are_refused(text: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        split_command(text)
    assert caught.value.error.kind is ErrorKind.INVALID_INPUT


def test_a_very_long_command_is_refused_unread() -> None:
    with pytest.raises(ToolFailure):
        split_command("a " * MAX_COMMAND_CHARS)


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs"))), min_size=1, max_size=8))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    assert split_command(shlex.join(words)) == words


@given(st.text(alphabet="ab \t'\"\\$;|&<>()`*?[~{#\n\0é=", max_size=40))
def test_whatever_is_accepted_is_what_a_posix_shell_would_split(text: str) -> None:
    words = outcome(split_command, text)
    if isinstance(words, ToolError):
        assert words.kind is ErrorKind.INVALID_INPUT
    else:
        assert words == shlex.split(text)
