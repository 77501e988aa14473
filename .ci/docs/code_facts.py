"""What the source says about errors: which kinds are raised where, with which details; which reasons RPCs have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "service" / "toolhub_service"
_PASSED_ON = (
    "domain/",
    "telemetry/tracing.py",
    "telemetry/observer.py",
    "transport/status.py",
    "transport/convert/result",
)
"""Files that name kinds without raising them."""
_NOT_DETAILS = {"kind", "message", "retryable", "retry_after_s", "violations", "details", "upstream", "blames_upstream"}


@dataclass(slots=True)
class Reason:
    """One ErrorInfo reason."""

    statuses: set[str] = field(default_factory=set)
    raised_in: set[str] = field(default_factory=set)
    retry_after_s: str = ""
    metadata: set[str] = field(default_factory=set)


@cache
def trees() -> list[tuple[str, ast.Module]]:
    """(path within the package, syntax tree) of every module."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def raised_kinds() -> dict[str, set[str]]:
    """Kind to the packages that raise it."""
    found: dict[str, set[str]] = {}
    for name, tree in trees():
        if not name.startswith(_PASSED_ON):
            for kind in _named(tree):
                found.setdefault(kind, set()).add(name.partition("/")[0])
    return found


def detail_keys() -> dict[str, set[str]]:
    """Kind to the keys of `details` that its refusals are seen to carry."""
    found: dict[str, set[str]] = {}
    for _, tree in trees():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _callee(call) in {"refuse", "ToolError"}:
                kinds = [kind for part in (*call.args, *_values(call, "kind")) for kind in _named(part)]
                for kind in kinds:
                    found.setdefault(kind, set()).update(_keys(call))
    return found


@cache
def words() -> set[str]:
    """Every keyword and every text key of the package: what a documented detail must be among."""
    found: set[str] = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


@cache
def reasons() -> dict[str, Reason]:
    """Reason to what is known of it."""
    found: dict[str, Reason] = {}
    for name, tree in trees():
        for reason, call, status in _failures(tree):
            entry = found.setdefault(reason, Reason())
            entry.statuses.add(status)
            entry.raised_in.add(name.partition("/")[0])
            entry.retry_after_s = next((ast.unparse(value) for value in _values(call, "retry_after_s")), "")
            entry.metadata |= {word.arg for word in call.keywords if word.arg} - {"retry_after_s", "field_violations"}
            entry.metadata |= {key for part in call.args[3:] for key in _text_keys(part)}
    return found


def _failures(tree: ast.Module) -> Iterator[tuple[str, ast.Call, str]]:
    """(reason, call, status) of every HubFailure and RpcFailure; a reason may come through a function of the module,
    or out of one of its tables."""
    through: dict[str, tuple[ast.Call, str]] = {}
    tables = _tables(tree)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and _callee(call) in {"HubFailure", "RpcFailure"} and len(call.args) > 1:
                status, reason = call.args[0], call.args[1]
                if isinstance(reason, ast.Constant) and isinstance(status, ast.Attribute):
                    yield str(reason.value), call, status.attr
                elif isinstance(reason, ast.Name) and isinstance(status, ast.Attribute):
                    through[function.name] = (call, status.attr)
                    yield from ((value, call, status.attr) for value in tables.get(_source(function, reason.id), ()))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _callee(call) in through and isinstance(call.args[0], ast.Constant):
            yield str(call.args[0].value), *through[_callee(call)]


def _tables(tree: ast.Module) -> dict[str, list[str]]:
    """The texts that each dictionary of the module leads to."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return {
        ast.unparse(node.targets[0]): [str(each.value) for each in node.value.values if isinstance(each, ast.Constant)]
        for node in assigned
        if isinstance(node.value, ast.Dict)
    }


def _source(function: ast.AST, variable: str) -> str:
    """The `TABLE` of `variable = TABLE.get(...)` in the function; empty when there is none."""
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    for node in assigned:
        if ast.unparse(node.targets[0]) == variable and isinstance(node.value, ast.Call):
            return ast.unparse(node.value.func).removesuffix(".get")
    return ""


def _named(node: ast.AST) -> Iterator[str]:
    """Kinds named to be raised: not those that are compared with, keys of a table, or members of a set."""
    if isinstance(node, ast.Compare | ast.Set) or (isinstance(node, ast.Call) and _callee(node) == "frozenset"):
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorKind":
        yield node.attr
    keys = node.keys if isinstance(node, ast.Dict) else []
    for child in ast.iter_child_nodes(node):
        if child not in keys:
            yield from _named(child)


def _keys(call: ast.Call) -> set[str]:
    plain = {word.arg for word in call.keywords if word.arg} - _NOT_DETAILS
    return plain | {key for part in _values(call, "details") for key in _text_keys(part)}


def _text_keys(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Dict):
        yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def _values(call: ast.Call, keyword: str) -> list[ast.expr]:
    return [word.value for word in call.keywords if word.arg == keyword]


def _callee(call: ast.Call) -> str:
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")
