"""`build_tool({type, name, config})`: every type, what it refuses, and calls of what it built through a whole hub."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.hub import OPEN_POLICY, running_hub
from toolhub.v1 import error_pb2
from toolhub_service.adapters.build_tool import Parts, build_tool
from toolhub_service.adapters.custom import LoadRefused


@pytest.mark.parametrize(
    ("description", "refusal"),
    [
        ({}, "required field `type`"),
        ({"type": "shell", "name": "acme/x.y"}, "`type` must be one of bash, file_copy, database_query, custom"),
        ({"type": "bash"}, "`name` is missing"),
        ({"type": "bash", "name": "acme/x.y", "config": {"shell": True}}, "unknown field `shell`"),
        ({"type": "bash", "name": "acme/x.y", "extra": 1}, "unknown field `extra`"),
        ({"type": "database_query", "name": "acme/x.y"}, "required field `connection`"),
        (
            {"type": "database_query", "name": "acme/x.y", "config": {"connection": "sales"}},
            "must name a database of the configuration: none is configured",
        ),
        ({"type": "custom", "config": {"module": "os", "class": "Tool"}}, "not in a trusted namespace"),
        ({"type": "custom", "config": {"module": "tests.hub", "class": "RunningHub"}}, "not a subclass of Tool"),
        ({"type": "custom", "config": {"module": "tests.hub"}}, "required field `class`"),
    ],
)
def test_a_description_that_cannot_be_built_states_the_correction(description: dict[str, Any], refusal: str) -> None:
    with pytest.raises(LoadRefused, match=refusal):
        build_tool(description, Parts(trusted_namespaces=["tests"]))


def test_a_built_tool_differs_from_its_type_by_its_name_alone() -> None:
    built = build_tool({"type": "file_copy", "name": "acme/files.copy"}, Parts())
    plain = build_tool({"type": "file_copy", "name": "core/fs.copy"}, Parts())
    assert (built.name, plain.name) == ("acme/files.copy", "core/fs.copy")
    assert (built.guarded, built.capabilities, built.In) == (plain.guarded, plain.capabilities, plain.In)


async def test_tools_of_every_type_are_called_through_the_hub_and_checked_by_policy(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "sales.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
        database.execute("INSERT INTO orders VALUES (7)")
    database.close()
    tools = {
        "custom": [
            {"type": "bash", "name": "acme/shell.run"},
            {"type": "file_copy", "name": "acme/files.copy"},
            {"type": "database_query", "name": "acme/sales.query", "config": {"connection": "sales"}},
            {"type": "database_query", "name": "acme/broken.query", "config": {"connection": "none"}},
        ]
    }
    databases = [{"name": name, "file": str(tmp_path / "sales.db")} for name in ("sales", "other")]
    policy = OPEN_POLICY.replace("read:web", '"read:db"') + "commands: [{preset: safe}]\n"
    settings = {"tools": tools, "databases": databases}
    async with running_hub(tmp_path / "hub", policy=policy, settings=settings) as hub:
        await hub.value("core/fs.writeText", {"path": "a.txt", "text": "x"}, request_id="r")
        copied = await hub.value("acme/files.copy", {"source": "a.txt", "destination": "b.txt"}, request_id="r")
        assert copied["bytesCopied"] == 1
        outside = await hub.invoke("acme/files.copy", {"source": "../a", "destination": "b"}, request_id="r")
        assert outside.error.kind == error_pb2.ERROR_KIND_PATH_OUTSIDE_SANDBOX
        assert (await hub.value("acme/shell.run", {"argv": ["echo", "hi"]}))["stdout"] == "hi\n"
        denied = await hub.invoke("acme/shell.run", {"argv": ["rm", "-rf", "/"]})
        assert denied.error.kind == error_pb2.ERROR_KIND_POLICY_DENIED
        rows = await hub.value("acme/sales.query", {"connection": "sales", "query": "SELECT id FROM orders"})
        assert rows["rows"] == [[7]]
        short = await hub.value("acme/sales.query", {"query": "SELECT id FROM orders", "limit": 5})
        assert short["rows"] == [[7]]
        other = await hub.invoke("acme/sales.query", {"connection": "other", "query": "SELECT id FROM orders"})
        assert "`connection` must name one of: sales" in other.error.message
        broken = await hub.invoke("custom/acme_broken_query", {})
        assert broken.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
        assert "must name a database of the configuration: sales, other" in broken.error.message
