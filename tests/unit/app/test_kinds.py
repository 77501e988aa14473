"""Each kind of source is declared once, in the `kind.py` of its folder, and everything else reads the list."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolhub.v1 import tool_pb2
from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.app.kinds import BY_NAME, KINDS

SERVICE = Path(__file__).parents[3] / "service" / "toolhub_service"
TOUCHED_FOR_A_KIND = {"app/kinds.py"}
"""Files outside of its folder that name a kind; with `kind.py`, the contract and the guide these are the places to
touch for a new one (CONTRIBUTING.md)."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_section_of_a_kind_has_its_name_in_settings_and_on_the_wire(kind: SourceKind[Any]) -> None:
    assert msgspec.to_builtins(kind.config())["kind"] == kind.name
    assert f"TOOL_KIND_{kind.name.upper()}" in [value.name for value in tool_pb2.ToolKind.DESCRIPTOR.values]
    assert ("trust" in kind.config.__struct_fields__) is kind.has_trust


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_loaders_that_a_kind_declares_are_callable(kind: SourceKind[Any]) -> None:
    assert callable(kind.load_opener())
    if kind.preview:
        assert callable(kind.load_preview())


def test_the_list_of_kinds_imports_no_library_of_an_extra_and_no_adapter() -> None:
    program = (
        "import sys; import toolhub_service.app.kinds; "
        "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'langchain_core', 'websockets', 'grpc', "
        "'pydantic', 'httpcore', 'prometheus_client')])"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


@pytest.mark.parametrize("kind", sorted(BY_NAME))
def test_no_second_table_names_a_kind(kind: str) -> None:
    section = BY_NAME[kind].config.__name__
    pattern = re.compile(rf"\b{section}\b|ToolKind\.{kind.upper()}\b")
    naming = {str(file.relative_to(SERVICE)) for file in SERVICE.rglob("*.py") if pattern.search(file.read_text())}
    outside = {file for file in naming if not file.startswith(f"adapters/{kind}/")}
    assert outside <= TOUCHED_FOR_A_KIND
