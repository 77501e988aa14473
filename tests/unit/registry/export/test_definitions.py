from __future__ import annotations

import gzip
import json
import random
import re

import pytest

from tests.corpora import FOLDER
from tests.ports.catalog_suite import tool
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import Annotations, ToolSpec
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.export.definitions import Dialect, Exporter, mcp_hints
from toolhub_service.registry.export.exported_names import ExportedNames, plain_name, tools_by_exported_name

ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
SCHEMA: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def catalog_of(*specs: ToolSpec) -> ToolCatalog:
    catalog = ToolCatalog(check_schema=lambda schema: None)
    catalog.register_builtins([spec for spec in specs if spec.name.startswith("core/")])
    catalog.register_all([spec for spec in specs if not spec.name.startswith("core/")])
    return catalog


READ = tool("core/fs.readText", "Read a file.", input_schema=SCHEMA, source="core", output_schema={"type": "object"})


@pytest.mark.parametrize(
    ("name", "exported"),
    [
        ("core/fs.readText", "core__fs_readText"),
        ("github/search_issues", "github__search_issues"),
        ("core/util.json.select", "core__util_json_select"),
        ("a/b-c", "a__b-c"),
    ],
)
def test_names_read_like_their_originals(name: str, exported: str) -> None:
    assert plain_name(name) == exported
    assert ExportedNames([name]).original(exported) == name


def test_every_name_that_a_client_may_have_been_given_leads_to_its_tool_and_a_shared_one_to_none() -> None:
    alike = ["a/b_c", "a/b.c", "core/fs.readText", "x/" + "y" * 90]
    found = tools_by_exported_name(alike)
    for names in (ExportedNames(alike, 60), ExportedNames(alike)):
        assert {name: found[names.exported_name(name)] for name in alike} == {name: name for name in alike}
    assert found["core__fs_readText"] == "core/fs.readText"
    assert "a__b_c" not in found


def test_an_unknown_exported_name_has_no_original() -> None:
    assert ExportedNames([]).original("core__fs_readText") is None


@pytest.mark.promise("registry.exports-lead-back")
def test_any_set_of_names_can_be_turned_back_in_any_order() -> None:
    chance = random.Random(3)
    names = {"a/b_c", "a/b.c", "a__b/c", "a/_b/c", "x" * 128, "x" * 127 + "y", "x" * 127 + "."}
    names |= {"".join(chance.choices("ab./_-", k=chance.randint(1, 100))) for _ in range(3_000)}
    names |= {plain_name(name) for name in list(names)[:500]}
    ordered = sorted(names)
    mapped = ExportedNames(ordered)
    chance.shuffle(ordered)
    again = ExportedNames(ordered)
    for name in names:
        assert ACCEPTED.fullmatch(mapped.exported_name(name))
        assert mapped.original(mapped.exported_name(name)) == name
        assert again.exported_name(name) == mapped.exported_name(name)


def test_a_name_made_to_look_like_the_short_form_of_a_long_one_takes_nothing_over() -> None:
    long = "git/" + "very_long_name." * 8 + "x"
    forged = plain_name(long).replace("git__", "git/", 1)
    mapped = ExportedNames([long, forged])
    assert mapped.exported_name(long) != mapped.exported_name(forged)
    assert mapped.original(mapped.exported_name(long)) == long
    assert mapped.original(mapped.exported_name(forged)) == forged


def test_tools_export_in_the_openai_form() -> None:
    export = Exporter(catalog_of(READ)).export(Dialect.OPENAI, [READ])
    function = {"name": "core__fs_readText", "description": "Read a file.", "parameters": SCHEMA}
    assert export.tools == ({"type": "function", "function": function},)
    assert export.names == {"core__fs_readText": "core/fs.readText"}


def test_tools_export_in_the_anthropic_form() -> None:
    export = Exporter(catalog_of(READ)).export(Dialect.ANTHROPIC, [READ])
    assert export.tools == ({"name": "core__fs_readText", "description": "Read a file.", "input_schema": SCHEMA},)


def test_tools_export_in_the_mcp_form() -> None:
    (definition,) = Exporter(catalog_of(READ)).export(Dialect.MCP, [READ]).tools
    assert definition == {
        "name": "core__fs_readText",
        "title": "core/fs.readText",
        "description": "Read a file.",
        "inputSchema": SCHEMA,
        "outputSchema": {"type": "object"},
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": False,
            "idempotentHint": False,
            "openWorldHint": False,
        },
    }


def test_an_output_that_is_no_object_is_left_out_of_the_mcp_form() -> None:
    spec = tool("a/x", output_schema={"type": "array"})
    (definition,) = Exporter(catalog_of(spec)).export(Dialect.MCP, [spec]).tools
    assert "outputSchema" not in definition


@pytest.mark.parametrize(
    ("annotations", "hints"),
    [
        (Annotations(), (False, False, False, False)),
        (Annotations(read_only=True, destructive=True), (True, False, True, False)),
        (Annotations(destructive=True, open_world=True), (False, True, False, True)),
        (Annotations(idempotent=True), (False, False, True, False)),
    ],
)
def test_annotations_become_hints(annotations: Annotations, hints: tuple[bool, ...]) -> None:
    names = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
    assert mcp_hints(annotations) == dict(zip(names, hints, strict=True))


def test_exports_are_ordered_and_equal_from_run_to_run() -> None:
    specs = [tool(f"a/t{number}") for number in range(20)]
    exporter = Exporter(catalog_of(*specs))
    export = exporter.export(Dialect.OPENAI, specs)
    assert json.dumps(export.tools) == json.dumps(exporter.export(Dialect.OPENAI, reversed(specs)).tools)
    assert list(export.names.values()) == sorted(spec.name for spec in specs)


def test_a_tool_has_one_exported_name_in_any_export() -> None:
    specs = [tool("a/" + "x" * 100), tool("a/y")]
    exporter = Exporter(catalog_of(*specs))
    alone = exporter.export(Dialect.MCP, specs[:1]).names
    assert alone.items() <= exporter.export(Dialect.MCP, specs).names.items()


def test_the_exporter_follows_the_catalog() -> None:
    catalog = catalog_of()
    exporter = Exporter(catalog)
    assert exporter.export(Dialect.MCP, catalog.all()).names == {}
    catalog.register(tool("a/x"))
    assert exporter.export(Dialect.MCP, catalog.all()).names == {"a__x": "a/x"}


@pytest.mark.parametrize("corpus", ["github_mcp", "docker_mcp_registry"])
def test_real_catalogues_are_exported_whole(corpus: str) -> None:
    path = FOLDER / "search" / corpus / "tools.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"corpus search/{corpus} is not here: set TEST_CORPORA to the folder that holds it")
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    catalog = ToolCatalog(check_schema=lambda schema: None)
    refused = catalog.register_all(
        [tool(row["name"].lower(), row["description"], input_schema=row.get("input_schema", {})) for row in rows]
    )
    if refused:
        kept = {row["name"].lower(): row for row in rows if row["name"].lower() not in refused}
        assert len(kept) > len(rows) * 0.97, sorted(refused)
        catalog.register_all(
            [tool(name, row["description"], input_schema=row.get("input_schema", {})) for name, row in kept.items()]
        )
    exporter = Exporter(catalog)
    for dialect in Dialect:
        export = exporter.export(dialect, catalog.all())
        assert len(export.tools) == len(catalog.all()) > 100
        assert all(ACCEPTED.fullmatch(name) for name in export.names)


def test_names_without_their_prefix_belong_to_one_tool_alone_and_with_it_they_are_understood_anyway() -> None:
    names = ["core/fs.read", "web/search", "shop/search", "shop/core__fs_read", "shop/job_start", f"shop/{'x' * 90}"]
    names += ["shop/order", "shop/pay.now"]
    shop = [name for name in names if name.startswith("shop/")]
    mapped = ExportedNames(names, 60, unprefixed=shop, reserved={"job_start"})
    assert mapped.exported_name("shop/order") == "order"
    assert mapped.exported_name("shop/pay.now") == "pay_now"
    assert mapped.original("order") == mapped.original("shop__order") == "shop/order"
    assert mapped.exported_name("shop/search") == "search"  # web's own is named with its prefix
    assert mapped.prefixed == ("shop/core__fs_read", "shop/job_start", f"shop/{'x' * 90}")
    assert mapped.original("core__fs_read") == "core/fs.read"
    assert mapped.original("job_start") is None
    both = ExportedNames(reversed(names), 60, unprefixed=["shop/search", "web/search"])
    assert both.prefixed == ("shop/search", "web/search")
    assert {both.exported_name(name) for name in both.prefixed} == {"shop__search", "web__search"}
