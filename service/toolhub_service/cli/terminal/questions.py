"""Questions to the person at the terminal: Enter ends the answer, Escape and Ctrl-C go back.

The line is read key by key, because a terminal's own line input takes Escape for a part of the text.
"""

from __future__ import annotations

import codecs
import os
import select
import sys
import termios
import tty
from typing import Final

import click

from toolhub_service.cli.terminal.output import Escaped, join_parts, print_line
from toolhub_service.guards.foreign_text import is_hidden as is_control

_ESCAPE: Final = b"\x1b"
_SEQUENCE_BEGINS: Final = (b"[", b"O")
_ENTER: Final = (b"\r", b"\n")
_BACKSPACE: Final = (b"\x7f", b"\x08")
_CLEAR: Final = b"\x15"  # Ctrl-U
_END: Final = b"\x04"  # Ctrl-D
_RUBOUT: Final = Escaped("\b \b")
_ANSWERS: Final = {"y": True, "yes": True, "": False, "n": False, "no": False}


def ask(label: str, *, is_hidden: bool = False) -> str:
    """Return what was typed, without control characters; empty for an empty line. Raises click.Abort at Escape, Ctrl-C,
    and Ctrl-D in an empty line. `is_hidden`: what is typed is not shown."""
    if not sys.stdin.isatty():
        typed: str = click.prompt(join_parts(label), default="", show_default=False, hide_input=is_hidden, err=True)
        return "".join(char for char in typed if not is_control(char))
    usual = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    try:
        print_line(label, ": ", err=True, nl=False)
        return _read_typed_line(is_shown=not is_hidden)
    except KeyboardInterrupt:
        raise click.Abort from None
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, usual)
        print_line(err=True)


def confirm(question: str) -> bool:
    """Return whether the person agrees; an empty line does not. Raises click.Abort as `ask` does."""
    while (answer := ask(f"{question} [y/N]").strip().lower()) not in _ANSWERS:
        print_line("Answer y or n.", err=True)
    return _ANSWERS[answer]


def _read_typed_line(*, is_shown: bool) -> str:
    typed = ""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    while (key := _read_byte()) not in _ENTER:
        if key == _ESCAPE:
            _skip_sequence()
        elif not key or (key == _END and not typed):
            raise click.Abort
        elif key in _BACKSPACE or key == _CLEAR:
            kept = "" if key == _CLEAR else typed[:-1]
            _echo(_RUBOUT * (len(typed) - len(kept)), is_shown=is_shown)
            typed = kept
        else:
            added = "".join(char for char in decoder.decode(key) if char != "\t" and not is_control(char))
            typed += added
            _echo(added, is_shown=is_shown)
    return typed


def _skip_sequence() -> None:
    """Read the rest of what a key such as an arrow sends. Raises click.Abort for Escape alone."""
    # The bytes of such a key arrive together; Escape alone has none after it, or those of the next key.
    if not select.select([sys.stdin], [], [], 0)[0] or _read_byte() not in _SEQUENCE_BEGINS:
        raise click.Abort
    while select.select([sys.stdin], [], [], 0)[0] and not b"@" <= _read_byte() <= b"~":
        pass


def _read_byte() -> bytes:
    # By the descriptor: Python's buffer would read more bytes, which `select` then would not report.
    return os.read(sys.stdin.fileno(), 1)


def _echo(text: str, *, is_shown: bool) -> None:
    if is_shown:
        print_line(Escaped(text), err=True, nl=False)
