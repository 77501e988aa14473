"""What two runs of one ComfyUI cannot have in common, by named rules: everything else is compared exactly.

A rule looks at one value and where it stands: `where` is the kind of event (`POST /prompt`, `ws execution_error`) and
then the keys and indices down to the value.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Where = tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """`becomes` gives what both sides are compared by; the value itself where the rule does not apply."""

    name: str
    reason: str
    becomes: Callable[[Where, Any], Any]


def _keys(*names: str) -> Callable[[Where], bool]:
    wanted = frozenset(names)
    return lambda where: where[-1] in wanted


def _text(pattern: str, instead: str) -> Callable[[Where, Any], Any]:
    found = re.compile(pattern)
    return lambda _, value: found.sub(instead, value) if isinstance(value, str) else value


def _under(names: Callable[[Where], bool], kind: type, instead: str) -> Callable[[Where, Any], Any]:
    return lambda where, value: instead if names(where) and isinstance(value, kind) else value


def _sorted_sets(where: Where, value: Any) -> Any:
    is_set = where[-1] in {"executed", "current_outputs"} or where[-2:] == ("prompt", "4")
    return sorted(value) if is_set and isinstance(value, list) else value


def _image(where: Where, value: Any) -> Any:
    is_image = isinstance(value, dict) and "_binary_sha256" in value and value["_len"] > 10
    return "<image>" if is_image else value


def _length(where: Where, value: Any) -> Any:
    return "<length>" if where[-1] == "Content-Length" and value not in {"0", "10"} else value


def _classes(where: Where, value: Any) -> Any:
    if where == ("GET /object_info", "response"):
        name, first = next(iter(value.items()))
        return {name: sorted(first), "required": list(first["input"]["required"])}
    return value


RULES = (
    Rule(
        "times",
        "every run has its own",
        _under(_keys("timestamp", "create_time", "execution_start_time", "execution_end_time"), int, "<milliseconds>"),
    ),
    Rule("tracebacks", "files and lines of the real server's source", _under(_keys("traceback"), list, "<frames>")),
    Rule("paths", "where the server was installed", _text(r"/opt/comfyui\S*", "<path>")),
    Rule("tensors", "the fake's pictures have one pixel to print", _text(r"(?s)^tensor\(.*\)$", "<tensor>")),
    Rule(
        "figures",
        "memory of the machine of the day",
        lambda where, value: "<bytes>" if re.fullmatch(r"(torch_)?v?ram_(total|free)", where[-1]) else value,
    ),
    Rule("command line", "how the real server was started", _under(_keys("argv"), list, "<argv>")),
    Rule("python", "the interpreter's build", _under(_keys("python_version"), str, "<python>")),
    Rule("temp names", "five letters drawn at each start", _text(r"ComfyUI_temp_[a-z]{5}_", "ComfyUI_temp_abcde_")),
    Rule("sets", "the server keeps them as sets, without order", _sorted_sets),
    Rule("images", "bytes of another encoder; what is read of them is compared where a test reads it", _image),
    Rule("lengths", "of bodies that carry times, ids and images", _length),
    Rule("etags", "time and size of the file", _text(r'^"[0-9a-f]+-[0-9a-f]+"$', "<etag>")),
    Rule("file dates", "when the file was written", _under(_keys("Last-Modified"), str, "<date>")),
    Rule("range totals", "the size of the file", _text(r"^bytes 0-9/\d+$", "bytes 0-9/<length>")),
    Rule(
        "queue lengths",
        "depend on when the worker thread took a prompt; their sequence without repetitions is compared",
        lambda where, value: "<length>" if where[0] == "ws broadcast" and where[-1] == "queue_remaining" else value,
    ),
    Rule("server's ids", "a clientId that the server drew", _text(r"^[0-9a-f]{32}$", "<sid>")),
    Rule("all classes", "744 kB, recorded to the sixth class: the first one's keys and inputs are compared", _classes),
)


def normal(where: Where, value: Any, used: Counter[str] | None = None) -> Any:
    """The value as it is compared; `used` counts the rules that changed something."""
    for rule in RULES:
        became = rule.becomes(where, value)
        if became != value and used is not None:
            used[rule.name] += 1
        value = became
    if isinstance(value, dict):
        return {key: normal((*where, key), each, used) for key, each in value.items()}
    if isinstance(value, list):
        return [normal((*where, str(index)), each, used) for index, each in enumerate(value)]
    return value


def differences(wanted: Any, got: Any, where: str = "") -> list[str]:
    """Where two normal values differ, as paths."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        keys = sorted(wanted.keys() | got.keys())
        missing = [
            f"{where}.{key}: only {'recorded' if key in wanted else 'faked'}" for key in wanted.keys() ^ got.keys()
        ]
        return missing + [
            found for key in keys if key in wanted and key in got
            for found in differences(wanted[key], got[key], f"{where}.{key}")
        ]  # fmt: skip
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        pairs = enumerate(zip(wanted, got, strict=True))
        return [found for index, (one, other) in pairs for found in differences(one, other, f"{where}[{index}]")]
    same = wanted == got and isinstance(wanted, bool) == isinstance(got, bool)
    return [] if same else [f"{where}: recorded {wanted!r:.300}, faked {got!r:.300}"]
