"""Compares the answers of a fake with those recorded of the real server: the same keys, types and fixed texts.

Times, ids and the like differ from run to run: a string that reads like one is compared by its kind, and so is what
stands under a key named as loose. Of a stack trace the first line counts. A recording that was cut at some length is
compared as far as it goes (`read_cut`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_KINDS = {
    "a time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"),
    "a date": re.compile(r"\d{4}-\d\d-\d\d"),
    "a uuid": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    "a stack trace": re.compile(r"\w*Error: [^\n]*(\n    at [^\n]+)+"),
}


class CutObject(dict[str, Any]):
    """An object of a cut recording: it may have had more keys."""


class CutList(list[Any]):
    """A list of a cut recording: it may have gone on."""


def read_cut(text: str) -> Any:
    """JSON of which the end may be missing; what is incomplete at the end is left out.

    Raises:
        ValueError: it is no JSON from the beginning.
    """
    try:
        return json.loads(text)
    except ValueError:
        if text[:1] not in {"{", "["}:
            raise
        return _opened(text, 0)


def _opened(text: str, at: int) -> CutObject | CutList | None:
    """The container that begins here and never ends; None where none begins."""
    if text[at : at + 1] == "{":
        return _opened_object(text, at + 1)
    if text[at : at + 1] == "[":
        return _opened_list(text, at + 1)
    return None


def _opened_object(text: str, at: int) -> CutObject:
    read = CutObject()
    while (key := _whole(text, at)) is not None:
        name, at = key
        value = _whole(text, at + 1)
        if value is None:
            inner = _opened(text, at + 1)
            return CutObject(read | {name: inner}) if inner is not None else read
        read[name], at = value[0], value[1] + 1
    return read


def _opened_list(text: str, at: int) -> CutList:
    read = CutList()
    while (value := _whole(text, at)) is not None:
        read.append(value[0])
        at = value[1] + 1
    inner = _opened(text, at)
    return CutList([*read, inner]) if inner is not None else read


def _whole(text: str, at: int) -> tuple[Any, int] | None:
    """The value that begins here and where it ends; None where it is cut (a number at the very end may be)."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except ValueError:
        return None
    return None if end == len(text) else (value, end)


@dataclass(frozen=True)
class Loose:
    """What is compared by its type only: the ends of paths such as `$.data[0].project.id`, with indices as `[]`."""

    ends: tuple[str, ...] = ()

    def holds(self, path: str) -> bool:
        return re.sub(r"\[\d+\]", "[]", path).endswith(self.ends) if self.ends else False


def differences(recorded: Any, answered: Any, loose: Loose, path: str = "$") -> Iterator[str]:
    """In which places the two differ; nothing where they do not."""
    if isinstance(recorded, dict) and isinstance(answered, dict):
        yield from _in_objects(recorded, answered, loose, path)
    elif isinstance(recorded, list) and isinstance(answered, list):
        yield from _in_lists(recorded, answered, loose, path)
    elif type(recorded) is not type(answered):
        yield f"{path}: {type(recorded).__name__} was recorded, and {type(answered).__name__} was said"
    elif not loose.holds(path) and not _is_alike(recorded, answered):
        yield f"{path}: {recorded!r} was recorded, and {answered!r} was said"


def _in_objects(recorded: dict[str, Any], answered: dict[str, Any], loose: Loose, path: str) -> Iterator[str]:
    for key in recorded.keys() - answered.keys():
        yield f"{path}.{key}: was recorded, and was not said"
    if not isinstance(recorded, CutObject):
        for key in answered.keys() - recorded.keys():
            yield f"{path}.{key}: was said, and was not recorded"
    for key in recorded.keys() & answered.keys():
        yield from differences(recorded[key], answered[key], loose, f"{path}.{key}")


def _in_lists(recorded: list[Any], answered: list[Any], loose: Loose, path: str) -> Iterator[str]:
    if loose.holds(path):
        if {type(value) for value in recorded} != {type(value) for value in answered}:
            yield f"{path}: the lists hold different types"
        return
    is_cut = isinstance(recorded, CutList)
    if len(answered) < len(recorded) or (len(answered) > len(recorded) and not is_cut):
        yield f"{path}: {len(recorded)} were recorded, and {len(answered)} were said"
    for index, (one, other) in enumerate(zip(recorded, answered, strict=False)):
        yield from differences(one, other, loose, f"{path}[{index}]")


def _is_alike(recorded: Any, answered: Any) -> bool:
    if not isinstance(recorded, str):
        return bool(recorded == answered)
    for name, kind in _KINDS.items():
        if kind.fullmatch(recorded):
            same_line = recorded.split("\n")[0] == answered.split("\n")[0] or name != "a stack trace"
            return same_line and kind.fullmatch(answered) is not None
    return bool(recorded == answered)
