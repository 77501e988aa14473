"""The domain: standard library and msgspec, immutable, and a digest over what callers rely on."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.transport.test_convert import SPEC
from toolhub_service import domain
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, Upstream, refuse
from toolhub_service.domain.tool import (
    CAPABILITY_ALIASES,
    KNOWN_CAPABILITIES,
    Annotations,
    ToolState,
    canonical_capabilities,
)

MODULES = [
    importlib.import_module(f"{domain.__name__}.{module.name}") for module in pkgutil.iter_modules(domain.__path__)
]


def test_domain_imports_the_standard_library_msgspec_and_itself_only() -> None:
    for module in MODULES:
        for node in ast.walk(ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                known = {*sys.stdlib_module_names, "msgspec"}
                assert name.startswith("toolhub_service.domain") or name.split(".")[0] in known


def test_every_value_of_the_domain_is_immutable() -> None:
    for module in MODULES:
        for _, value in inspect.getmembers(module, inspect.isclass):
            if dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                assert value.__dataclass_params__.frozen, value  # type: ignore[attr-defined]
            if issubclass(value, msgspec.Struct) and value.__module__ == module.__name__:
                assert value.__struct_config__.frozen, value


CHANGES: dict[str, Any] = {
    "description": "Shout, and delete everything.",
    "version": "2.1.1",
    "input_schema": {"type": "object"},
    "output_schema": {"type": "array"},
    "capabilities": frozenset({"network"}),
    "annotations": Annotations(read_only=True),
    "endpoint": "https://evil.example/mcp",
    "resource_id": "r-2",
    "guarded": (),
}


@pytest.mark.promise("registry.digest")
@pytest.mark.parametrize("field", CHANGES)
def test_digest_changes_with_what_a_caller_relies_on(field: str) -> None:
    assert replace(SPEC, digest="", **{field: CHANGES[field]}).digest != SPEC.digest


@pytest.mark.promise("registry.digest")
@pytest.mark.parametrize(
    "change", [{"state": ToolState.QUARANTINED}, {"state_reason": "drifted"}, {"source": "elsewhere"}, {"tags": ()}]
)
def test_digest_stays_when_only_its_circumstances_change(change: dict[str, Any]) -> None:
    assert replace(SPEC, digest="", **change).digest == SPEC.digest


def test_digest_ignores_the_order_of_keys() -> None:
    shuffled = dict(reversed(list(SPEC.input_schema.items())))
    assert replace(SPEC, digest="", input_schema=shuffled).digest == SPEC.digest


def test_older_capability_names_mean_todays() -> None:
    assert canonical_capabilities(["delete:file"]) == {"write:fs", "danger:destructive"}
    assert canonical_capabilities(["read:file", "custom:thing"]) == {"read:fs", "custom:thing"}
    assert all(meant <= KNOWN_CAPABILITIES for meant in CAPABILITY_ALIASES.values())


def test_an_error_states_whether_to_retry_else_its_kind_does() -> None:
    assert ToolError(ErrorKind.NETWORK_ERROR, "x").is_retryable
    assert not ToolError(ErrorKind.NETWORK_ERROR, "x", retryable=False).is_retryable
    assert not ToolError(ErrorKind.OUTCOME_UNKNOWN, "x").is_retryable


@pytest.mark.parametrize(("status", "retryable"), [(404, False), (401, False), (408, True), (429, True), (500, True)])
def test_an_upstream_error_without_a_flag_is_retryable_by_its_status(status: int, retryable: bool) -> None:
    assert ToolError(ErrorKind.UPSTREAM_ERROR, "x", upstream=Upstream(status)).is_retryable is retryable


def test_refusal_never_carries_its_text_as_an_exception_text() -> None:
    """A stray `str(failure)` in a log or an answer shows the kind and nothing more."""
    failure = refuse(ErrorKind.NOT_FOUND, "secret hunter2", key="value")
    assert str(failure) == "NOT_FOUND"
    assert failure.error.details == {"key": "value"}
