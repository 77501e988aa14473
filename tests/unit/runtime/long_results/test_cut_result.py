from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.runtime.pipeline_harness import a_pipeline_harness, a_tool
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.result import EvidenceType, Outcome
from toolhub_service.domain.tool import ToolLimits
from toolhub_service.runtime.long_results.cut_result import cut_aside, cut_to
from toolhub_service.schema.canonical_json import NotJson, dumps

CAP = 400
SMALL = a_tool("test/small", read_only=True, limits=ToolLimits(max_result_bytes=CAP))


def test_value_within_its_cap_is_left_alone() -> None:
    value = {"text": "x" * (CAP - 11)}
    assert len(dumps(value)) == CAP
    assert cut_to(value, CAP) == (value, None)


def test_longest_string_is_shortened_and_the_shape_stays() -> None:
    value = {"name": "a.txt", "text": "x" * 10_000}
    cut, what = cut_to(value, CAP)
    assert isinstance(cut, dict)
    assert cut["name"] == "a.txt"
    assert str(cut["text"]).startswith("xxx")
    assert "characters left out]" in str(cut["text"])
    assert len(dumps(cut)) <= CAP
    assert what is not None
    assert what.whole == dumps(value)
    assert what.evidence.sha256 == hashlib.sha256(dumps(value)).hexdigest()


def test_a_list_loses_its_end_and_states_how_much() -> None:
    cut, _ = cut_to({"rows": [{"id": number} for number in range(1_000)]}, CAP)
    assert isinstance(cut, dict)
    rows = cut["rows"]
    assert isinstance(rows, list)
    assert rows[0] == {"id": 0}
    assert str(rows[-1]).endswith("of 1000 items left out]")


def test_number_is_never_cut_nor_left_out_in_silence() -> None:
    cut, _ = cut_to({"count": 2**60}, 20)
    assert str(cut).startswith("[result of 29 bytes left out")


def test_string_is_never_cut_inside_a_character() -> None:
    cut, _ = cut_to("ü" * 1_000, CAP)
    assert str(cut).startswith("ü")
    dumps(cut)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=2_000),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=60,
)


@pytest.mark.promise("evidence.cut-is-proved")
@settings(deadline=None)
@given(value=json_values, max_bytes=st.integers(200, 2_000))
def test_a_cut_value_fits_its_cap(value: Any, max_bytes: int) -> None:
    cut, what = cut_to(value, max_bytes)
    assert len(dumps(cut)) <= max_bytes
    assert (what is None) == (len(dumps(value)) <= max_bytes)


@pytest.mark.promise("evidence.cut-is-proved")
async def test_answer_over_its_cap_is_marked_and_proves_the_whole() -> None:
    value: dict[str, Any] = {"text": "x" * 10_000}
    result = await a_pipeline_harness(Outcome(value=value), tools=(SMALL,)).result(SMALL)
    assert result.ok
    assert result.truncated
    assert len(dumps(result.value)) <= CAP
    whole, left_out = [evidence for evidence in result.evidence if evidence.type is EvidenceType.METRIC]
    assert whole.sha256 == hashlib.sha256(dumps(value)).hexdigest()
    assert "could not be kept" in left_out.summary  # by a harness that keeps no artifacts
    assert len(result.evidence) == 3


@pytest.mark.parametrize("number", [1, 100, 255, 256, 257, 600, 5_000])
def test_a_list_keeps_as_many_items_as_fit(number: int) -> None:
    value: Any = {"rows": [{"id": 10_000 + each} for each in range(number)]}
    cut, what = cut_to(value, CAP)
    assert isinstance(cut, dict)
    rows = cut["rows"]
    assert isinstance(rows, list)
    if what is None:
        assert rows == value["rows"]
    else:
        assert CAP - 150 <= len(dumps(cut)) <= CAP
        assert rows[:-1] == value["rows"][: len(rows) - 1]


NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("value", "repaired"),
    [
        (float("nan"), None),
        ([float("inf"), 1.5], [None, 1.5]),
        ({"a": "half \ud800 pair"}, {"a": "half \ufffd pair"}),
        ({"\udc00": ["x" * 100]}, {"\ufffd": ["x" * 100]}),
    ],
)
async def test_an_answer_with_what_json_cannot_hold_is_repaired_and_evidence_says_so(value: Any, repaired: Any) -> None:
    tool = replace(a_tool("test/odd"), output_schema={})
    result = await a_pipeline_harness(Outcome(value=value), tools=(tool,)).result(tool)
    assert result.ok
    assert result.value == repaired
    assert "was no strict JSON" in result.evidence[-1].summary


@pytest.mark.parametrize("value", [NESTED, [NESTED, float("nan")], {"a": b"bytes"}])
async def test_an_answer_that_is_no_json_is_refused_typed(value: Any) -> None:
    tool = replace(a_tool("test/odd"), output_schema={})
    error = await a_pipeline_harness(Outcome(value=value), tools=(tool,)).error(tool)
    assert error.kind is ErrorKind.OUTPUT_SCHEMA_INVALID
    assert "not valid JSON" in error.message
    assert "do not repeat it blindly" in error.message


@pytest.mark.parametrize("truncated", [True, False])
async def test_a_fitting_answer_is_marked_as_cut_only_when_the_tool_marks_it(truncated: bool) -> None:
    result = await a_pipeline_harness(Outcome(value={"text": "x"}, truncated=truncated), tools=(SMALL,)).result(SMALL)
    assert result.truncated is truncated


@pytest.mark.parametrize(
    "value",
    [
        {"n": 1},
        "short",
        "ü" * 1_000_000,
        {"name": "a.txt", "text": "x" * 1_000_000},
        {"rows": [{"text": "y" * 1_000} for _ in range(1_000)]},
        None,
    ],
)
async def test_value_is_cut_beside_the_loop_as_on_it(value: Any) -> None:
    assert await cut_beside_the_loop(value) == cut_to(value, CAP)


async def test_a_list_of_many_small_values_is_cut_beside_the_loop_as_on_it() -> None:
    value = [[number] for number in range(100_000)]
    assert await cut_beside_the_loop(value) == cut_to(value, CAP)


async def cut_beside_the_loop(value: Any) -> tuple[Any, Any]:
    """What is left and what was taken, with the summary of what is left."""
    left, what, summary = await cut_aside(value, CAP)
    assert summary.digest == hashlib.sha256(dumps(left)).hexdigest()
    assert len(summary.text) <= CAP
    return left, what


@pytest.mark.parametrize("text", ["\ud800", "x" * 1_000_000 + "\ud800"])
async def test_invalid_json_is_reported_at_any_length(text: str) -> None:
    with pytest.raises(NotJson):
        await cut_aside({"text": text}, CAP)
