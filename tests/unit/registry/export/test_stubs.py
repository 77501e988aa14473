"""Stubs of tools: how they express a schema, that they are valid code, and that no description leaves its comment."""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.corpora import FOLDER
from tests.missing import give_up, need_program
from tests.ports.catalog_suite import tool
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.export.schema_types import TYPES_MAX
from toolhub_service.registry.export.stubs import (
    FunctionName,
    function_names,
    long_name,
    python_stubs,
    short_name,
    tools_by_name,
)
from toolhub_service.registry.export.stubs_typescript import typescript_stubs

TSC = Path(__file__).parents[4] / ".ci/toolchain/node_modules/typescript/bin/tsc"
HOSTILE = [
    *(
        '"""',
        "'''",
        '\\"""',
        '"',
        "\\",
        "*/",
        "/*",
        "*\\/",
        "//",
        "`${1}`",
        "\x00",
        "\r",
        "\x0c",
        "\u2028",
        "\x1b[0m",
    ),
    *(
        "\nimport os\n",
        '"""\nimport os\n"""',
        "*/ declare const pwned: 1; /*",
        "}; evil();",
        "a: int\n    b",
        "class",
        "é",
        "",
    ),
    *("__class__", "None", "delete", "constructor", "$ref", "a-b", "1st", "_", "x" * 5_000, "\n" * 50),
]


def texts_of(specs: Sequence[ToolSpec]) -> tuple[str, str]:
    names = function_names(spec.name for spec in specs)
    return python_stubs(specs, names), typescript_stubs(specs, names)


def compiles(text: str, folder: Path) -> str:
    """What tsc says of the declarations; empty: nothing."""
    (folder / "tools.d.ts").write_text(text)
    command: list[str | Path] = ["node", TSC, "--noEmit", "--strict", "--lib", "es2020", folder / "tools.d.ts"]
    stdout: str = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return stdout


def random_schema(chance: random.Random, depth: int) -> Any:
    def name() -> str:
        return chance.choice([*HOSTILE, "a", "b", "c"])

    kind = chance.randrange(9)
    if depth == 0 or kind == 0:
        return chance.choice([True, False, {}, {"type": "string"}, {"type": "integer"}, {"type": ["string", "null"]}])
    inner = [random_schema(chance, depth - 1) for _ in range(chance.randint(1, 4))]
    shapes: list[Any] = [
        {"type": "array", "items": inner[0]},
        {"type": "object", "additionalProperties": inner[0]},
        {"type": "object", "properties": {name(): each for each in inner}, "required": [name(), "a", 3]},
        {"properties": {name(): each for each in inner}, "additionalProperties": False, "description": name()},
        {"anyOf": inner},
        {"enum": [name(), 1, None, True, 2.5][: chance.randint(0, 5)]},
        {"$ref": chance.choice(["#/$defs/X", "#/$defs/Y", "#/$defs/no", "http://x", 7])},
        {"allOf": inner, "type": chance.choice(["object", 7, [], ["array"]])},
    ]
    return {"description": name(), **chance.choice(shapes)}


def hostile_tools() -> list[ToolSpec]:
    chance = random.Random(11)
    made = []
    for number in range(80):
        schema = {"$defs": {"X": random_schema(chance, 2), "Y": {"properties": {"y": {"$ref": "#/$defs/Y"}}}}}
        takes = random_schema(chance, 3)
        takes = {**takes, **schema} if isinstance(takes, dict) else {}
        name = (
            f"{chance.choice(['class', 'os', 'a-b', '1x', 'core2'])}/t{number}.{chance.choice(['delete', 'if', 'x-y'])}"
        )
        made.append(tool(name, chance.choice(HOSTILE), input_schema=takes, output_schema=takes))
    return made


@pytest.mark.promise("programs.stubs-are-code")
def test_no_schema_breaks_a_stub_or_leaves_its_comment(tmp_path: Path) -> None:
    specs = hostile_tools()
    for corpus in ("github_mcp", "docker_mcp_registry"):
        path = FOLDER / "search" / corpus / "tools.jsonl.gz"
        rows = (
            [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()[::15]]
            if path.is_file()
            else []
        )
        specs += [
            tool(row["name"].lower(), row["description"], input_schema=row.get("input_schema", {})) for row in rows
        ]
    specs = list({spec.name: spec for spec in specs}.values())
    python, typescript = texts_of(specs)
    parsed = ast.parse(python)
    allowed = (ast.ImportFrom, ast.ClassDef, ast.AsyncFunctionDef, ast.FunctionDef, ast.Assign, ast.AnnAssign)
    assert {type(node) for node in parsed.body} <= set(allowed)
    assert [node.module for node in parsed.body if isinstance(node, ast.ImportFrom)] == ["typing"]
    functions = [node for node in parsed.body if isinstance(node, ast.AsyncFunctionDef)]
    assert len(functions) == len(specs) + 1  # `call`
    for node in ast.walk(parsed):
        assert not isinstance(node, ast.Call) or ast.unparse(node.func) == "TypedDict"
    python.encode(), typescript.encode()
    code = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', "", typescript, flags=re.DOTALL)
    assert "pwned" not in code
    need_program("node")
    if not TSC.is_file():
        give_up("the TypeScript compiler is not here: make setup")
    assert compiles(typescript, tmp_path) == ""


def test_a_stub_states_what_the_schema_does() -> None:
    takes = {
        "type": "object",
        "properties": {
            "to": {"$ref": "#/$defs/Person"},
            "limit": {"type": "integer", "default": 5, "description": "How many."},
            "mode": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": ["string", "null"]}},
            "class": {"type": "boolean"},
        },
        "required": ["to"],
        "additionalProperties": False,
        "$defs": {
            "Person": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "boss": {"$ref": "#/$defs/Person"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        },
    }
    properties = {name: each for name, each in takes["properties"].items() if name != "class"}  # type: ignore[attr-defined]
    spec = tool(
        "acme/mail.send", "Send.", input_schema={**takes, "properties": properties}, output_schema={"type": "number"}
    )
    python, typescript = texts_of([spec])
    assert "class MailSendPerson(TypedDict):\n    name: str\n    boss: NotRequired[MailSendPerson]\n" in python
    assert (
        "async def mail_send(*, to: MailSendPerson, limit: int = ..., mode: Literal['a', 'b'] = ..., "
        "tags: list[str | None] = ...) -> float:" in python
    )
    assert "limit: How many." in python
    assert "type Mail_sendIn0 = { name: string; boss?: Mail_sendIn0; };" in typescript
    assert 'mode?: "a" | "b"; tags?: Array<string | null>; }): Promise<number>;' in typescript
    odd = texts_of([tool("acme/odd", "Odd.", input_schema=takes)])
    assert "'class': NotRequired[bool]" in odd[0]
    assert "async def odd(args: OddIn, /)" in odd[0]


def test_a_huge_schema_makes_a_small_stub() -> None:
    deep: Any = {"type": "string"}
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    wide = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(10 * TYPES_MAX)}}
    for schema in (deep, wide, {"anyOf": [wide, deep]}):
        for text in texts_of([tool("a/b", "B.", input_schema=schema, output_schema=schema)]):
            assert len(text) < 400_000


def test_names_of_functions_lead_back_to_their_tools() -> None:
    clashing = ["a/b.c", "a/b_c", "a/b-c", "a-x/b", "a_x/b", "os/system", "core/x.class", "a/d"]
    names = function_names(clashing)
    assert len(set(names.values())) == len(clashing)
    assert names["a/d"] == FunctionName("a", "d")
    assert str(names["os/system"]) == "os_.system"
    assert str(short_name("core/x.class")) == "core.x_class"
    words = {name.function for name in names.values()}
    found = tools_by_name(clashing, words)
    assert {found[name] for name in names.values()} == set(clashing)
    # A stub that was made among more tools fits where one is alone.
    assert tools_by_name(["a/b.c"], {long_name("a/b.c").function, "b_c"}) == {
        short_name("a/b.c"): "a/b.c",
        long_name("a/b.c"): "a/b.c",
    }
