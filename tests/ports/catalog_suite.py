"""What every catalog must do. A test class inherits `CatalogSuite` and gives an empty catalog."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import pytest

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.domain.ports import Catalog
from toolhub_service.domain.tool import ToolKind, ToolSpec, ToolState


def tool(name: str, description: str = "A tool.", **fields: object) -> ToolSpec:
    """A small definition."""
    known: dict[str, object] = {"kind": ToolKind.MCP, "input_schema": {"type": "object"}, "output_schema": {}}
    return ToolSpec(name=name, description=description, **(known | {"source": "test"} | fields))  # type: ignore[arg-type]


class CatalogSuite:
    """Behaviours of the Catalog port."""

    @pytest.fixture
    @abstractmethod
    def catalog(self) -> Catalog:
        raise NotImplementedError

    def test_an_unknown_tool_is_not_found(self, catalog: Catalog) -> None:
        assert catalog.get("test/no.such") is None
        assert list(catalog.all()) == []

    def test_a_registered_tool_is_found_by_its_name(self, catalog: Catalog) -> None:
        spec = tool("test/a.run")
        catalog.register(spec)
        assert catalog.get("test/a.run") is spec

    def test_all_is_sorted_by_name(self, catalog: Catalog) -> None:
        for name in ("test/c.run", "test/a.run", "test/b.run"):
            catalog.register(tool(name))
        assert [spec.name for spec in catalog.all()] == ["test/a.run", "test/b.run", "test/c.run"]

    def test_a_taken_name_is_refused_unless_it_is_to_be_replaced(self, catalog: Catalog) -> None:
        catalog.register(tool("test/a.run"))
        with pytest.raises(HubFailure) as caught:
            catalog.register(tool("test/a.run", "Another tool."))
        assert caught.value.reason.code is Code.ALREADY_EXISTS
        catalog.register(tool("test/a.run", "Another tool."), replace=True)
        found = catalog.get("test/a.run")
        assert found is not None
        assert found.description == "Another tool."

    def test_an_unregistered_tool_is_gone(self, catalog: Catalog) -> None:
        catalog.register(tool("test/a.run"))
        catalog.unregister("test/a.run")
        assert catalog.get("test/a.run") is None
        with pytest.raises(HubFailure) as caught:
            catalog.unregister("test/a.run")
        assert caught.value.reason.code is Code.NOT_FOUND

    def test_the_revision_follows_every_change_and_nothing_else(self, catalog: Catalog) -> None:
        seen = [catalog.revision]
        catalog.register(tool("test/a.run"))
        seen.append(catalog.revision)
        catalog.register(tool("test/a.run", "Another tool."), replace=True)
        seen.append(catalog.revision)
        catalog.register(tool("test/a.run", "Another tool.", state=ToolState.DISABLED), replace=True)
        seen.append(catalog.revision)
        assert len(set(seen)) == 4
        catalog.get("test/a.run")
        catalog.all()
        assert catalog.revision == seen[-1]

    def test_equal_tools_give_an_equal_revision_by_any_history(self, catalog: Catalog) -> None:
        catalog.register(tool("test/a.run"))
        before = catalog.revision
        catalog.register(tool("test/b.run"))
        catalog.unregister("test/b.run")
        assert catalog.revision == before

    def test_a_refused_change_changes_nothing(self, catalog: Catalog) -> None:
        catalog.register(tool("test/a.run"))
        before = catalog.revision
        with pytest.raises(HubFailure):
            catalog.register(replace(tool("test/a.run"), digest="0" * 64))
        assert catalog.revision == before
