"""Parses the arguments of a call: a JSON object, @file, `-` for standard input, or key=value pairs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

_PAIR = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*=")


def read_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> bytes:
    """Return the arguments as JSON bytes. `schema` tells which key=value values are text and which are JSON."""
    if len(words) == 1 and not _PAIR.match(words[0]):
        return _document(words[0])
    args: dict[str, Any] = {}
    for word in words:
        if not _PAIR.match(word):
            raise click.UsageError(
                f"{word!r} is not key=value. A JSON object must be the only argument: put it in single quotes."
            )
        key, _, value = word.partition("=")
        if key in args:
            raise click.UsageError(f"{key} is given twice. Write a list as JSON: {key}='[…]'")
        args[key] = _parse_value(value, schema.get("properties", {}).get(key, {}))
    return json.dumps(args).encode()


def _document(word: str) -> bytes:
    """Return the bytes as given: the hub parses them strictly and reports errors."""
    if word == "-":
        return sys.stdin.buffer.read()
    if word.startswith("@"):
        return _file(word[1:])
    if not word.lstrip().startswith("{"):
        raise click.UsageError(
            f"{word!r} is not an argument. Give key=value pairs, a JSON object, @FILE or - (standard input)."
        )
    # The shell's bytes as typed: the hub reports what is wrong with them.
    return word.encode("utf-8", "surrogateescape")


def _parse_value(value: str, declared: Mapping[str, Any]) -> Any:
    """Return text where the schema takes text, JSON elsewhere; `@file` reads text from a file, `@@` begins with an
    @."""
    if _takes_text(declared):
        # A text that itself begins with @ is written with two.
        if value.startswith("@@"):
            return value[1:]
        return _text(value[1:]) if value.startswith("@") else value
    try:
        return json.loads(value)
    except ValueError:
        return value  # the hub's message about it is better


def _takes_text(declared: Mapping[str, Any]) -> bool:
    kinds = declared.get("type", [branch.get("type") for branch in declared.get("anyOf", ())])
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _text(name: str) -> str:
    try:
        return _file(name).decode("utf-8")
    except UnicodeDecodeError as binary:
        raise click.UsageError(f"{name} is not UTF-8 text.") from binary


def _file(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as missing:
        raise click.UsageError(f"{name}: {missing.strerror}") from missing
