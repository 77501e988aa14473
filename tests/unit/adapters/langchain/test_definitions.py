"""The definition of a LangChain tool: its contract closed, its risk as the operator declares."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from tests.fakes import langchain_tools as fakes
from tests.fakes.langchain_source import opened
from toolhub_service.adapters.langchain.async_code import is_generator, runs_on_loop
from toolhub_service.adapters.langchain.bound_tool import BoundTool, bind_tool
from toolhub_service.adapters.langchain.contract import contract_of
from toolhub_service.adapters.langchain.loading import OUTPUT_SCHEMA
from toolhub_service.domain.tool import Annotations, ToolKind
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.sections.source_config import ToolTerms


def closed_over(schema: Any, **args: Any) -> bool:
    return compile_schema(schema).is_valid(args)


async def test_a_definition_carries_names_contract_and_the_worst_that_is_known_of_its_risk() -> None:
    async with opened("echo", timeout_s=7.0, tags=("own",), max_concurrency=3) as desk:
        (definition,) = desk.discovery.definitions
    spec = definition.spec
    assert (spec.name, spec.kind, spec.source, spec.resource_id) == ("desk/echo", ToolKind.LANGCHAIN, "desk", "echo")
    assert spec.description == "Say it again."
    assert spec.annotations == Annotations()
    assert spec.capabilities == {"langchain:desk"}
    assert spec.upstream == "langchain:desk"
    assert spec.tags == ("own", "langchain", "desk")
    assert (spec.limits.timeout_s, spec.limits.max_concurrency, spec.limits.max_retries) == (7.0, 3, 0)
    assert spec.output_schema == OUTPUT_SCHEMA
    assert spec.input_schema["properties"] == {"text": {"default": "", "title": "Text", "type": "string"}}
    assert spec.input_schema["additionalProperties"] is False
    assert definition.remote["name"] == "echo"
    assert definition.problem == ""


async def test_the_operators_terms_count() -> None:
    terms = {
        "*": ToolTerms(capabilities=("desk:read",)),
        "ec*": ToolTerms(read_only=True, timeout_s=1.5),
        "whoami": ToolTerms(offered=False),
        "even": ToolTerms(destructive=True),
    }
    async with opened("LOOP_TOOLS", tools=terms, capabilities=("desk:all",)) as desk:
        echo, crashes, even = (desk.spec(name) for name in ("echo", "crashes", "even"))
        assert "whoami" not in {one.spec.resource_id for one in desk.discovery.definitions}
    assert echo.annotations.read_only
    assert (echo.limits.timeout_s, echo.limits.max_retries) == (1.5, 2)
    assert echo.capabilities == {"desk:all"}
    assert crashes.capabilities == {"desk:read"}
    assert even.annotations.destructive


@pytest.mark.promise("langchain.injected-not-settable")
async def test_injected_arguments_are_absent_and_cannot_be_sent() -> None:
    async with opened("whoami", "listed_injection", inject={"user": "principal"}) as desk:
        for name in ("whoami", "listed_injection"):
            schema: Any = desk.spec(name).input_schema
            assert set(schema["properties"]) == {"question"}
            assert closed_over(schema, question="q")
            for attack in ("user", "tool_call_id", "run_manager", "config", "callbacks"):
                assert not closed_over(schema, question="q", **{attack: "admin"}), (name, attack)


async def test_a_schema_in_parts_stays_usable_and_closed() -> None:
    from langchain_core.tools import StructuredTool

    tool = StructuredTool(
        name="parts",
        description="Parts.",
        args_schema={
            "allOf": [{"$ref": "#/$defs/A"}],
            "properties": {"b": {"type": "string"}},
            "$defs": {"A": {"properties": {"a": {"type": "string"}}, "required": ["a"]}},
        },
        func=lambda a, b="": a + b,
    )
    schema = contract_of(tool).schema
    assert closed_over(schema, a="x", b="y")
    assert not closed_over(schema, b="y")
    assert not closed_over(schema, a="x", user="admin")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("needs_state", "`inject` of its source does not name: state"),
        ("streams", "returns a generator"),
        ("unspeakable", "cannot be described as JSON Schema: PydanticInvalidForJsonSchema"),
    ],
)
async def test_a_tool_that_cannot_be_called_states_why_and_does_not_affect_others(name: str, problem: str) -> None:
    async with opened("BROKEN_TOOLS") as desk:
        problems = {one.spec.resource_id: one.problem for one in desk.discovery.definitions}
        assert problem in problems[name]
        assert problems["echo"] == ""
        assert (await desk("echo", text="x")) == {"text": "x"}


async def test_a_part_of_a_schema_that_the_hub_cannot_check_by_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fakes import langchain_tools

    schema = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}
    hostile = langchain_tools.dict_schema.model_copy(update={"args_schema": schema})
    monkeypatch.setattr(langchain_tools, "hostile", hostile, raising=False)
    async with opened("hostile") as desk:
        (definition,) = desk.discovery.definitions
        assert "leads nowhere" in desk.source.diagnostics()[-1]
    assert (definition.problem, definition.spec.input_schema["properties"]) == ("", {"a": {}})


async def test_a_tool_without_a_schema_takes_one_text() -> None:
    async with opened("single", "from_runnable") as desk:
        assert desk.spec("single").input_schema["required"] == ["tool_input"]
        assert desk.spec("from_runnable").input_schema["required"] == ["text"]


async def test_a_long_description_is_cut_and_odd_names_are_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fakes import langchain_tools

    odd = langchain_tools.echo.model_copy(update={"name": "Ünlücky name\u200b!", "description": "d" * 100_000})
    monkeypatch.setattr(langchain_tools, "odd", odd, raising=False)
    async with opened("odd") as desk:
        spec = desk.discovery.definitions[0].spec
    assert spec.name == "desk/u00dcnlu00fccky_nameu200b_"
    assert len(spec.description) == 16 * 1024


@pytest.mark.parametrize("tool", fakes.LOOP_TOOLS, ids=lambda tool: tool.name)
def test_async_code_runs_on_the_loop(tool: BaseTool) -> None:
    assert runs_on_loop(tool)


@pytest.mark.parametrize("tool", fakes.WORKER_TOOLS, ids=lambda tool: tool.name)
def test_sync_code_and_code_that_is_async_by_name_only_runs_in_a_worker(tool: BaseTool) -> None:
    assert not runs_on_loop(tool)


def test_a_tool_with_sync_and_async_code_runs_on_the_loop() -> None:
    async def later(text: str) -> str:
        return text

    def now(text: str) -> str:
        return text

    assert runs_on_loop(StructuredTool.from_function(now, later, description="Both."))
    assert not runs_on_loop(StructuredTool.from_function(now, description="One."))


def test_generators_are_refused_with_a_reason() -> None:
    assert is_generator(fakes.streams)
    assert not is_generator(fakes.echo)
    assert not is_generator(fakes.add)


class Swapped(BaseModel):
    """What a caller sends as `x` is read as `user`."""

    model_config = ConfigDict(populate_by_name=True)
    x: str = Field(alias="user")
    user: Annotated[str, InjectedToolArg] = Field(alias="x", default="nobody")


class Renamed(BaseModel):
    """What the hub puts under `user` does not arrive."""

    x: str
    user: Annotated[str, InjectedToolArg] = Field(alias="u", default="admin")


class Chosen(BaseModel):
    x: str
    user: Annotated[str, InjectedToolArg] = Field(validation_alias=AliasChoices("user", "x"), default="admin")


class Open(BaseModel):
    """Callers may add what they like, says the schema."""

    model_config = ConfigDict(extra="allow")
    x: str = Field(alias="X")
    user: Annotated[str, InjectedToolArg] = "nobody"


def tool_of(schema: type[BaseModel]) -> BoundTool:
    def whoami(x: str = "", user: str = "", **more: Any) -> str:
        return f"{x} {user} {more}"

    tool = StructuredTool.from_function(whoami, name="whoami", description="Say who.", args_schema=schema)
    return bind_tool(tool, frozenset({"user"}))


@pytest.mark.promise("langchain.injected-not-settable")
@pytest.mark.parametrize("schema", [Swapped, Renamed, Chosen])
def test_a_tool_that_reads_them_under_an_alias_cannot_be_called(schema: type[BaseModel]) -> None:
    assert "under aliases" in tool_of(schema).problem


def test_field_aliases_do_no_harm_and_the_schema_stays_closed() -> None:
    found = tool_of(Open)
    assert found.problem == ""
    assert found.schema["additionalProperties"] is False
    asked = found.request({"X": "x", "user": "admin"}, {"user": "ann"}, call_id="c", metadata={}, traced=False)
    assert asked["args"] == {"X": "x", "user": "ann"}
