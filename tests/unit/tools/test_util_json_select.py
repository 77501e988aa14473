from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.util_context import bare_context, called, refused
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.tools.query_limits import Language
from toolhub_service.tools.util_tools import JsonSelect

BOOKS = {"books": [{"title": "Emma", "price": 8}, {"title": "Ulysses", "price": 20}]}


@pytest.mark.parametrize(
    ("path", "language", "value"),
    [
        ("books[0].title", "jmespath", "Emma"),
        ("books[?price < `10`].title", "jmespath", ["Emma"]),
        ("{n: length(books), total: sum(books[].price)}", "jmespath", {"n": 2, "total": 28}),
        ("books[9]", "jmespath", None),
        ("$.books[?@.price > 10].title", "jsonpath", ["Ulysses"]),
        ("$..price", "jsonpath", [8, 20]),
        ("$.nothing", "jsonpath", []),
    ],
)
async def test_a_search_selects_by_either_language(path: str, language: Language, value: Any) -> None:
    context = bare_context()
    assert await called(JsonSelect(), context, json=BOOKS, path=path, language=language) == {"value": value}
    assert len(context.evidence) == 1


async def test_jmespath_is_the_default() -> None:
    assert await called(JsonSelect(), json=[1, 2], path="[1]") == {"value": 2}


async def test_a_path_that_starts_with_a_dollar_is_jsonpath_without_saying_so() -> None:
    assert await called(JsonSelect(), json={"a": [{"b": 1}, {"b": 2}]}, path="$.a[*].b") == {"value": [1, 2]}


async def test_examples_work() -> None:
    for example in JsonSelect.examples:
        assert (await called(JsonSelect(), **example.args))["value"] == ["Emma"]


@pytest.mark.parametrize(
    ("path", "language", "position"),
    [
        ("a[", "jmespath", 2),
        ("a-b", "jmespath", 1),
        ("$.a[", "jsonpath", 4),
        ("a", "jsonpath", 0),
        ("$.a[?@.b==]", "jsonpath", 10),
    ],
)
async def test_a_syntax_error_names_its_position(path: str, language: Language, position: int) -> None:
    error = await refused(JsonSelect(), json=BOOKS, path=path, language=language)
    assert error.kind is ErrorKind.INVALID_INPUT
    assert error.details["position"] == position
