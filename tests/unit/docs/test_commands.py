"""Every `toolhub …` line that the documentation shows is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from tests.unit.docs.pages_of_docs import ROOT, fences, inline_code, markdown
from toolhub_service.cli.root import toolhub

_PROGRAM = re.compile(r"(?:^|[\s(])(?:\S*/)?toolhub(?= )")
_END = {"|", ">", ">>", "&", "&&", ";", "2>"}


def shown_lines() -> Iterator[tuple[str, str]]:
    """(page, command line) of every shell block, and of the examples in the help of commands."""
    for page in markdown():
        for block in fences(page, "sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if not line.lstrip().startswith(("#", "helm ")) and _PROGRAM.search(line):
                    yield page.relative_to(ROOT).as_posix(), line.strip()
        for block in fences(page, "text"):
            lines = (line.strip() for line in block.splitlines())
            yield from ((page.name, line) for line in lines if line.startswith("toolhub "))


def mentions() -> Iterator[tuple[str, str]]:
    """(page, words) where running text names a command, perhaps without its arguments."""
    for page in markdown():
        for text in inline_code(page):
            if re.match(r"toolhub [a-z]", text) and "…" not in text and "..." not in text:
                yield page.relative_to(ROOT).as_posix(), text


def parse(line: str) -> str:
    """The path of the command meant. Raises click's own error, or AssertionError for one that there is not."""
    words = shlex.split(line, comments=True)
    start = next(place for place, word in enumerate(words) if Path(word).name == "toolhub")
    words = words[start + 1 :]
    words = words[: next((place for place, word in enumerate(words) if word in _END), len(words))]
    context = click.Context(toolhub, info_name="toolhub", **toolhub.context_settings)
    while words and not words[0].startswith("-"):
        group = context.command
        assert isinstance(group, click.Group)
        command = group.get_command(context, words[0])
        assert command is not None, f"{context.command_path} has no command {words[0]}"
        if not isinstance(command, click.Group):
            _take(command, words[0], words[1:], context)
            return f"{context.command_path} {words[0]}"
        context = click.Context(command, info_name=words.pop(0), parent=context)
    return context.command_path


def _take(command: click.Command, name: str, words: list[str], parent: click.Context) -> None:
    """Files that an example names need not be there."""
    try:
        command.make_context(name, words, parent=parent)
    except click.BadParameter as refused:
        if "No such file" not in refused.message:
            raise


@pytest.mark.parametrize(("page", "line"), sorted(set(shown_lines())))
def test_lines_of_shell_blocks_parse(page: str, line: str) -> None:
    assert parse(line).startswith("toolhub")


@pytest.mark.parametrize(("page", "line"), sorted(set(mentions())))
def test_commands_named_in_text_exist(page: str, line: str) -> None:
    with suppress(click.MissingParameter):  # a mention may leave arguments out; what is unknown still fails
        assert parse(line).startswith("toolhub")


@pytest.mark.parametrize("line", ["toolhub serve --no-such-option", "toolhub tools show", "toolhub keys nothing"])
def test_a_line_that_is_wrong_does_not_parse(line: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        parse(line)
