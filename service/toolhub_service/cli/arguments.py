"""Arguments of a call as people type them: a JSON object, @file, `-` for standard input, or key=value pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click


def read_arguments(words: Sequence[str], schema: Mapping[str, Any]) -> bytes:
    """JSON bytes for the wire. `schema` tells which key=value values are text and which are JSON."""
    if len(words) == 1 and not _is_pair(words[0]):
        return _document(words[0])
    args: dict[str, Any] = {}
    for word in words:
        if not _is_pair(word):
            raise click.UsageError(
                f"{word!r} is neither key=value nor the only argument; a JSON object goes in one word"
            )
        key, _, value = word.partition("=")
        args[key] = _typed(key, value, schema)
    return json.dumps(args).encode()


def _is_pair(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace("_", "").replace("-", "").isalnum()


def _document(word: str) -> bytes:
    """The bytes as given: the hub reads them strictly and says what is wrong with them."""
    if word == "-":
        return sys.stdin.buffer.read()
    if word.startswith("@"):
        try:
            return Path(word[1:]).read_bytes()
        except OSError as missing:
            raise click.UsageError(f"{word[1:]}: {missing.strerror}") from missing
    if not word.lstrip().startswith("{"):
        raise click.UsageError(f"{word!r} is not a JSON object, @file, - or key=value")
    return word.encode()


def _typed(key: str, value: str, schema: Mapping[str, Any]) -> Any:
    """Text where the schema takes text, JSON elsewhere; `@file` reads text from a file."""
    declared = schema.get("properties", {}).get(key, {})
    if value.startswith("@") and _takes_text(declared):
        return Path(value[1:]).read_text(encoding="utf-8")
    if _takes_text(declared):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value  # the hub's own message is better than ours


def _takes_text(declared: Mapping[str, Any]) -> bool:
    kinds = declared.get("type", [branch.get("type") for branch in declared.get("anyOf", ())])
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)
