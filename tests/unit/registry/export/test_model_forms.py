"""Schemas in the subsets of strict mode and Gemini, and arguments that a model writes for them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest

from tests.corpora import FOLDER
from tests.fakes import model_interfaces
from tests.ports.catalog_suite import tool
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.export.definitions import Dialect, Exporter, describe_briefly, reading_of
from toolhub_service.registry.export.model_arguments import Reading, restore
from toolhub_service.schema.strict_json import loads

VALIDATORS: dict[Dialect, Callable[[dict[str, Any]], list[str]]] = {
    Dialect.OPENAI: model_interfaces.openai,
    Dialect.OPENAI_STRICT: model_interfaces.openai_strict,
    Dialect.ANTHROPIC: model_interfaces.anthropic,
    Dialect.GEMINI: model_interfaces.gemini,
}
CORPORA = ["github_mcp", "docker_mcp_registry", "restbench_tmdb", "bfcl"]
_MOST = 300


def specs_of(corpus: str) -> list[ToolSpec]:
    path = FOLDER / "search" / corpus / "tools.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"corpus search/{corpus} is not here: set TEST_CORPORA to the folder that holds it")
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    shown = [row for row in rows if row.get("input_schema")][:_MOST]
    return [tool(f"a/t{at}", row["description"], input_schema=row["input_schema"]) for at, row in enumerate(shown)]


def exported(spec: ToolSpec, dialect: Dialect) -> dict[str, Any]:
    exporter = Exporter(ToolCatalog(check_schema=lambda schema: None))
    return dict(exporter.definition(dialect, "a__x", spec))


def parameters_of(schema: JsonObject, dialect: Dialect) -> Any:
    definition = exported(tool("a/x", input_schema=schema), dialect)
    return definition["function"]["parameters"] if "function" in definition else definition.get("parameters")


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("dialect", VALIDATORS)
def test_every_interface_accepts_real_tools(corpus: str, dialect: Dialect) -> None:
    for spec in specs_of(corpus):
        assert VALIDATORS[dialect](exported(spec, dialect)) == [], spec.input_schema


_LISTS: list[JsonObject] = [{"type": "array", "items": {"$ref": f"#/$defs/D{at}"}} for at in range(1, 6)]
WIDE: JsonObject = {
    "type": "object",
    "properties": {"d": {"$ref": "#/$defs/D0"}},
    "$defs": {
        **{f"D{at}": {"anyOf": [{**lists, "minItems": n} for n in range(30)]} for at, lists in enumerate(_LISTS)},
        "D5": {"type": "string"},
    },
}
"""A few lines that name millions of places."""
HOSTILE: list[JsonObject] = [
    WIDE,
    {"type": "object", "properties": {"self": {"$ref": "#"}}},
    {"type": "object", "properties": {f"p{n}": {"type": "object", "properties": {"x": {}}} for n in range(90)}},
    {"type": "object", "properties": {"e": {"enum": [f"value {n}" for n in range(2_000)]}}},
    {"type": "object", "properties": {"e": {"enum": ["", "a"]}, "f": {"enum": [None]}, "g": {"const": {"a": 1}}}},
    {"type": "object", "properties": {"d": {"$ref": "#/$defs/D"}}, "$defs": {"D": {"items": {"$ref": "#/$defs/D"}}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}]}, "b": True, "c": {"type": "array"}}},
    {"allOf": [{"properties": {"a b": {"type": ["object", "array", "null"]}}}, {"required": ["a b"]}]},
    {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
    {"type": "object", "properties": {"x" * 20_000: {"type": "string"}}},
]


@pytest.mark.parametrize("dialect", VALIDATORS)
@pytest.mark.parametrize("schema", HOSTILE)
def test_every_interface_accepts_odd_schemas(schema: JsonObject, dialect: Dialect) -> None:
    assert VALIDATORS[dialect](exported(tool("a/x", "D.", input_schema=schema), dialect)) == []


def test_a_strict_schema_says_null_for_what_may_be_left_out_and_tells_what_it_cannot_say() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "description": "How many."},
            "mode": {"enum": ["r", "w"]},
            "env": {"type": "object"},
        },
        "required": ["mode"],
    }
    assert parameters_of(schema, Dialect.OPENAI_STRICT) == {
        "type": "object",
        "properties": {
            "n": {"type": ["integer", "null"], "description": "How many. (minimum: 1)"},
            "mode": {"type": "string", "enum": ["r", "w"]},
            "env": {"type": ["string", "null"], "description": "An object, written as a text of JSON."},
        },
        "required": ["n", "mode", "env"],
        "additionalProperties": False,
    }


def test_gemini_gets_its_own_words_and_no_parameters_where_there_are_none() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "level": {"enum": [1, 2, None]},
            "who": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "description": "Who."},
        },
    }
    assert parameters_of(schema, Dialect.GEMINI) == {
        "type": "OBJECT",
        "properties": {
            "level": {"type": "STRING", "format": "enum", "enum": ["1", "2"], "nullable": True},
            "who": {
                "anyOf": [
                    {"type": "STRING", "nullable": True, "description": "Who."},
                    {"type": "INTEGER", "nullable": True},
                ]
            },
        },
    }
    assert parameters_of({"type": "object"}, Dialect.GEMINI) is None


def test_a_name_that_begins_with_a_digit_gets_a_letter_before_it_for_gemini() -> None:
    catalog = ToolCatalog(check_schema=lambda schema: None)
    catalog.register(tool("3d/print"))
    exporter = Exporter(catalog)
    assert exporter.export(Dialect.GEMINI, catalog.all()).names == {"_3d__print": "3d/print"}
    assert exporter.export(Dialect.OPENAI, catalog.all()).names == {"3d__print": "3d/print"}


def test_a_description_for_a_model_without_the_describing_tool_does_not_name_it() -> None:
    spec = describe_briefly(tool("a/x", "It does a lot. " * 100))
    for dialect in VALIDATORS:
        definition = exported(spec, dialect)
        shown = definition.get("function", definition)["description"]
        assert shown.endswith("lot. (Cut.)")
        assert len(shown) <= 1_024
    assert describe_briefly(short := tool("a/x", "Short.")) is short


_BOUNDS = "minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength pattern minItems maxItems multipleOf"


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("dialect", [Dialect.OPENAI_STRICT, Dialect.GEMINI])
def test_what_a_model_may_write_for_a_subset_is_turned_back_into_valid_arguments(corpus: str, dialect: Dialect) -> None:
    chance, compared = random.Random(5), 0
    for spec in specs_of(corpus):
        text = json.dumps(spec.input_schema)
        if any(f'"{bound}"' in text for bound in _BOUNDS.split()) or '[""' in text:
            continue  # told to the model, not enforced
        original = jsonschema_rs.validator_for(dict(spec.input_schema))
        shown = exported(spec, dialect)
        parameters = shown["function"]["parameters"] if "function" in shown else shown.get("parameters")
        for _ in range(3):
            written = {} if parameters is None else _written(parameters, chance)
            args = restore(written, spec.input_schema, reading_of(dialect, spec.input_schema), loads).args
            assert original.is_valid(args), (spec.input_schema, written, args)
            compared += 1
    assert compared > 50


def _written(schema: dict[str, Any], chance: random.Random) -> Any:
    """What a model that keeps to an exported schema may write."""
    if "anyOf" in schema:
        return _written(chance.choice(schema["anyOf"]), chance)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = chance.choice(kinds).lower()
    if kind == "null" or (schema.get("nullable") and chance.random() < 0.3):
        return None
    if "enum" in schema:
        return chance.choice([member for member in schema["enum"] if member is not None])
    if kind == "object":
        kept = [name for name in schema["properties"] if name in schema.get("required", ()) or chance.random() < 0.5]
        return {name: _written(schema["properties"][name], chance) for name in kept}
    if kind == "array":
        return [_written(schema["items"], chance) for _ in range(chance.randint(0, 2))]
    if kind == "string":
        description = schema.get("description", "")
        return "{}" if "An object, written" in description else "[]" if "A list, written" in description else "text"
    return {"integer": 3, "number": 1.5, "boolean": True}[kind]


def restored(schema: JsonObject, args: Any, **reading: Any) -> Any:
    return restore(args, schema, Reading(**reading), loads).args


SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "any": {},
        "free": {"type": "object"},
        "mixed": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        "ids": {"type": "array", "items": {"type": "integer"}},
        "note": {"type": ["string", "null"]},
        "when": {"type": "string"},
        "sure": {"type": "boolean"},
    },
    "required": ["note"],
}


@pytest.mark.parametrize(
    ("args", "read"),
    [
        ({"free": '{"a": 1}'}, {"free": {"a": 1}}),
        ({"ids": "[1]", "sure": "true"}, {"ids": [1], "sure": True}),
        ({"ids": ["1", 2]}, {"ids": [1, 2]}),
        ({"ids": "[1"}, {"ids": "[1"}),
        ({"ids": '"text"', "free": "[]"}, {"ids": '"text"', "free": "[]"}),
        ({"any": "[1]", "mixed": "{}", "note": "[1]", "when": "1"}, None),
    ],
)
def test_a_text_is_read_as_json_only_where_no_text_is_accepted(args: Any, read: Any) -> None:
    assert restored(SCHEMA, args, reads_texts=True) == (args if read is None else read)


def test_in_a_subset_the_text_of_an_object_or_list_is_read_where_both_are_accepted() -> None:
    args = {"any": "[1]", "mixed": '{"a": 1}', "note": "[1]", "when": "{}"}
    found = restored(SCHEMA, args, reads_texts=True, reads_fitting_texts=True)
    assert found == {"any": [1], "mixed": {"a": 1}, "note": "[1]", "when": "{}"}
    assert restored(SCHEMA, {"any": "7"}, reads_texts=True, reads_fitting_texts=True) == {"any": "7"}


def test_null_is_dropped_where_it_says_that_something_is_left_out() -> None:
    args = {"when": None, "note": None, "any": None}
    assert restored(SCHEMA, args, drops_nulls=True) == {"note": None}
    assert restored(SCHEMA, args, drops_unfit_nulls=True) == {"note": None, "any": None}
    assert restored(SCHEMA, args) is args


def test_names_lead_back_only_where_the_property_is_declared() -> None:
    schema: JsonObject = {"properties": {"$top": {}, "map": {"type": "object", "additionalProperties": {}}}}
    args = {"_top": 1, "map": {"_top": 2}, "other": {"_top": 3}}
    assert restored(schema, args, names={"_top": "$top"}) == {"$top": 1, "map": {"_top": 2}, "other": {"_top": 3}}
    both = {"_top": 1, "$top": 2}
    assert restored(schema, both, names={"_top": "$top"}) == both


def deep(levels: int) -> Iterator[Any]:
    value: Any = {}
    for _ in range(levels):
        value = {"self": value}
    yield value


def test_arguments_of_a_recursive_schema_are_followed_to_their_end() -> None:
    schema: JsonObject = {"type": "object", "properties": {"self": {"$ref": "#"}, "n": {"type": "integer"}}}
    (args,) = deep(60)
    assert restored(schema, args, reads_texts=True) == args
    assert restored(schema, {"self": {"self": {"n": "1"}}}, reads_texts=True) == {"self": {"self": {"n": 1}}}


def test_many_arguments_are_turned_back_in_the_time_of_their_number() -> None:
    args: Any = {"d": [[[["x"] * 40] * 40] * 4], "many": list(range(20_000))}
    reading = reading_of(Dialect.GEMINI, WIDE)
    found = restore(args, WIDE, reading, loads)
    assert found.args == args
