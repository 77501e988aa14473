"""The tool behind an exported name, without the map of the export."""

from __future__ import annotations

import hashlib
from typing import cast

import pytest

from tests.ports.catalog_suite import tool
from toolhub_service.domain.ports import Catalog
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.export.exported_names import MCP_MAX_CHARS, ExportedNames
from toolhub_service.registry.export.names_given import NamesGiven, possible_names


class Named:
    """A catalog of tools by name alone: that of the hub refuses names that look alike."""

    def __init__(self, *names: str) -> None:
        self.names, self.version = list(names), 0

    def all(self) -> list[ToolSpec]:
        return [tool(name) for name in self.names]


def given_in(catalog: Named) -> NamesGiven:
    return NamesGiven(cast(Catalog, catalog))


ALIKE = ["a/b.c", "a/b_c", "core/fs.readText", "d/" + "x" * 80, "1st/tool"]


@pytest.mark.promise("registry.exported-names-resolve")
@pytest.mark.parametrize("max_chars", [64, MCP_MAX_CHARS])
def test_every_name_of_an_export_leads_back_to_its_tool(max_chars: int) -> None:
    names, given = ExportedNames(ALIKE, max_chars), given_in(Named(*ALIKE))
    assert {name: given.tool_of(names.exported_name(name)) for name in ALIKE} == {name: name for name in ALIKE}


def test_a_name_of_two_tools_or_none_leads_nowhere() -> None:
    given = given_in(Named(*ALIKE))
    assert given.tool_of("a__b_c") == ""
    assert given.tool_of("a__nothing") == ""
    assert given.tool_of("") == ""


def test_a_name_that_was_given_while_another_tool_collided_is_still_known() -> None:
    marked = "a__b_c_" + hashlib.sha256(b"a/b.c").hexdigest()[:8]
    assert given_in(Named("a/b.c")).tool_of(marked) == "a/b.c"


def test_a_name_begun_for_gemini_is_known() -> None:
    assert given_in(Named("1st/tool")).tool_of("_1st__tool") == "1st/tool"


def test_names_follow_the_catalog() -> None:
    catalog = Named("a/b.c")
    given = given_in(catalog)
    assert given.tool_of("a__b_c") == "a/b.c"
    catalog.names.append("a/b_c")
    catalog.version += 1
    assert given.tool_of("a__b_c") == ""


def test_an_exported_name_may_be_of_each_source_that_its_parts_allow() -> None:
    assert possible_names("a__b___c") == ["a/b___c", "a__b/_c", "a__b_/c"]
    assert possible_names("__a") == []
    assert possible_names("plain") == []
