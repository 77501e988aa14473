"""docs/sources.md: every example is valid, and every message that it tells operators to look for is in the code."""

from __future__ import annotations

import code_facts
import pytest
import yaml

from tests.unit.docs.pages_of_docs import DOCS, fences
from toolhub_service.adapters.mcp.failures import Breakage
from toolhub_service.adapters.mcp.kind import McpSource
from toolhub_service.app.config_files.sources_file import parse_sources
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.errors.spec import StartReason
from toolhub_service.domain.pin import PinChange, PinState
from toolhub_service.domain.source import SourceState, Trust
from toolhub_service.policy.decide import PolicySnapshot

PAGE = DOCS / "sources.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = tuple(fences(PAGE, "yaml"))


def cells(heading: str) -> list[str]:
    """The first cell of each row of the table whose first heading this is."""
    table = TEXT.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in table.splitlines()[2:]]


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_one_that_the_hub_reads(example: str) -> None:
    if "sources" in yaml.safe_load(example):
        assert parse_sources(example, "docs/sources.md").sources
    else:
        assert PolicySnapshot.load(example).revision


@pytest.mark.parametrize(
    ("heading", "words"),
    [
        ("state", {state.name for state in SourceState}),
        ("change", {change.name for change in PinChange} - {"NONE"}),
        ("`trust`", {f"`{trust.value}`" for trust in Trust}),
        ("value", {f"`{name}`" for name in ("decline", "ask", "defaults")}),
    ],
)
def test_a_table_of_words_is_complete(heading: str, words: set[str]) -> None:
    assert set(cells(heading)) == words


def test_every_state_of_a_pin_is_told() -> None:
    assert [state.name for state in PinState if state.name not in TEXT] == []


def test_every_message_is_one_that_the_hub_says() -> None:
    documented = [part for cell in cells("symptom") for part in cell.split("`")[1::2]]
    kinds = {kind.value for kind in ErrorKind}
    known = {*code_facts.words(), *(breakage.value for breakage in Breakage), *kinds}
    known |= {reason.name for reason in StartReason}
    assert documented
    assert [part for part in documented if not any(part in text for text in known)] == []


def test_the_bound_of_a_message_is_the_default() -> None:
    assert f"{McpSource().max_message_bytes // 2**20} MiB, inflated" in TEXT
