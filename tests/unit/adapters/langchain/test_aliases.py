"""Injected arguments that pydantic would read under another name."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.tools import InjectedToolArg, StructuredTool
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from toolhub_service.adapters.langchain.bound_tool import BoundTool, bound


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
    return bound(tool, frozenset({"user"}))


@pytest.mark.promise("langchain.injected-not-settable")
@pytest.mark.parametrize("schema", [Swapped, Renamed, Chosen])
def test_a_tool_that_reads_them_under_an_alias_cannot_be_called(schema: type[BaseModel]) -> None:
    assert "under other names (aliases)" in tool_of(schema).problem


def test_aliases_of_what_a_caller_may_send_do_no_harm_and_the_schema_is_closed_though_it_says_otherwise() -> None:
    found = tool_of(Open)
    assert found.problem == ""
    assert found.schema["additionalProperties"] is False
    asked = found.request({"X": "x", "user": "admin"}, {"user": "ann"}, call_id="c", metadata={}, traced=False)
    assert asked["args"] == {"X": "x", "user": "ann"}
