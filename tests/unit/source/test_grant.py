"""Granting happens in one place, and every adapter accepts nothing else."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import toolhub_service

SOURCE = Path(toolhub_service.__file__).parent


@cache
def calls() -> tuple[tuple[str, ast.Call], ...]:
    """(file, call) of every call in a file that speaks of calls being granted, planned or executed."""
    return tuple(
        (str(file.relative_to(SOURCE)), node)
        for file in sorted(SOURCE.rglob("*.py"))
        if any(word in (text := file.read_text(encoding="utf-8")) for word in ("GrantedCall", "PlannedCall", "execute"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
    )


def constructions(name: str) -> list[str]:
    """Files where `name(…)` is called or an instance is made by `__new__`."""
    return [file for file, call in calls() if name in (_last(call.func), _last(getattr(call.func, "value", call)))]


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


@pytest.mark.promise("pipeline.only-granted-calls-run")
def test_calls_are_granted_in_take_budget_only() -> None:
    assert constructions("GrantedCall") == ["runtime/steps.py"]


def test_calls_are_planned_in_apply_defaults_only() -> None:
    assert constructions("PlannedCall") == ["runtime/steps.py"]


def test_no_granted_call_is_copied_with_other_fields() -> None:
    """It would be a second way to grant. An adapter's `call` is a granted one, the runtime's is not."""
    for layer, granted in (("runtime", ("granted", "GrantedCall")), ("adapters", ("granted", "call", "GrantedCall"))):
        for file in sorted((SOURCE / layer).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr in ("_replace", "_make"):
                    assert ast.unparse(node.value) not in granted, f"{file}:{node.lineno}"


@pytest.mark.promise("pipeline.only-granted-calls-run")
def test_adapters_are_asked_to_execute_by_the_executor_only() -> None:
    asked = [file for file, call in calls() if ast.unparse(call.func) in ("adapter.execute", "self._adapter.execute")]
    assert asked == ["runtime/steps.py"]
