from __future__ import annotations

from typing import Any

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpora import load_json
from tests.fakes.outcomes import outcome
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.tools.query import select
from toolhub_service.tools.query_limits import Language, QueryLimits

LIMITS = QueryLimits()


def refusal(document: Any, path: str, language: Language = "jmespath", limits: QueryLimits = LIMITS) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        select(document, path, language, limits)
    assert caught.value.error.kind is ErrorKind.INVALID_INPUT
    return caught.value.error


def test_jsonpath_agrees_with_the_compliance_suite_of_rfc_9535() -> None:
    tests = load_json("json/jsonpath_cts.json.gz")["tests"]
    wrong = [test["name"] for test in tests if _outcome(test) not in _expected(test)]
    assert len(tests) > 700
    assert wrong == []


def _outcome(test: dict[str, Any]) -> Any:
    found = outcome(select, test.get("document"), test["selector"], "jsonpath", LIMITS)
    return found.kind if isinstance(found, ToolError) else found


def _expected(test: dict[str, Any]) -> list[Any]:
    if test.get("invalid_selector"):
        return [ErrorKind.INVALID_INPUT]
    expected: list[Any] = test["results"] if "results" in test else [test["result"]]
    return expected


DOCUMENT = {"a": [{"b": 1, "c": "x"}, {"b": 2}, {"b": None}], "o": {"k": [3, [1, 2]], "t": True}, "s": "text"}


@pytest.mark.parametrize(
    "path",
    [
        "a[].b",
        "a[?b==`2`]",
        "a[?b>`1` && c!='x'].b",
        "o.*",
        "o.k[]",
        "a[*].[b,c]",
        "a[::-1].b",
        "a[:2]",
        "{x: o.t, y: s}",
        "max(a[:2].b)",
        "sort(o.k[1])",
        "length(s)",
        "to_string(o)",
        "join('-', [s, s])",
        "contains(s, 'ex')",
        "keys(o)",
        "a[?contains(keys(@), 'c')]",
        "map(&b, a)",
        "sort_by(a[:2], &b)[0]",
        "merge(o, {z: `1`})",
        "not_null(z, s)",
        "reverse(s)",
        "o.k == o.k",
        "!s",
        "a | [0].b",
        "type(o)",
        "to_number('1.5e2')",
        "to_number('-7')",
        "@",
        "*",
    ],
)
def test_jmespath_with_a_meter_selects_what_the_library_selects(path: str) -> None:
    assert select(DOCUMENT, path, "jmespath", LIMITS) == jmespath.search(path, DOCUMENT)


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1_000", " 1", "١", "0x1", "1.", ".5", "01", ""])
def test_to_number_takes_json_numbers_only(text: str) -> None:
    assert select({"n": text}, "to_number(n)", "jmespath", LIMITS) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "[",
        "foo(",
        "nope(@)",
        "length(@, @)",
        "length(`1`)",
        "[::0]",
        "&a",
        "[&a]",
        "to_string(&a)",
        "a.",
        "sum(big)",
        "ceil(sum(big))",
    ],
)
def test_a_failing_jmespath_query_is_an_error_for_the_model(path: str) -> None:
    document = {"big": [1.7e308, 1.7e308]} if "big" in path else [1]
    assert "0x" not in refusal(document, path).message


def test_an_unknown_function_is_answered_with_the_known_ones() -> None:
    assert "sort_by" in str(refusal({}, "sortBy(@)").details["functions"])


@pytest.mark.promise("bounds.templates-and-queries")
@pytest.mark.parametrize(
    ("document", "path", "language"),
    [
        ({"a": 1}, "|".join(["[@,@]"] * 40), "jmespath"),
        ({"a": 1}, "|".join(["[@,@]"] * 40) + "|to_string(@)", "jmespath"),
        ({"a": 1}, "|".join(["[@,@]"] * 40) + "|@==@", "jmespath"),
        ({"a": 1}, "|".join(["{a:@,b:@}"] * 40), "jmespath"),
        ({"s": "ab"}, "s|" + "|".join(["join('',[@,@])"] * 60), "jmespath"),
        ([[0]] * 1000, "|".join(["[[],[]][]", "[@,@][][]"] * 30), "jmespath"),
        ([0] * 1000, "map(&map(&map(&@, $), $), @)".replace("$", "`" + str([0] * 300) + "`"), "jmespath"),
        ([[1] * 100] * 100, "$..[?$..[?$..[?@==1]]]", "jsonpath"),
        ([1] * 200_000, "$[?" + "||".join(["1==1"] * 200) + "]", "jsonpath"),
        ([1] * 200_000, "$[?" + "||".join(["@.a"] * 60) + "]", "jsonpath"),
        ({"x": [list(range(1000))] * 2, "o": [[list(range(1000))]] * 500}, "$.o[?@[0]==$.x[0]]", "jsonpath"),
        ([[[[1] * 30] * 30] * 30] * 30, "$" + "..*" * 20, "jsonpath"),
        (["a" * 1000] * 1000, "$" + "[" + ",".join(["*"] * 900) + "]", "jsonpath"),
    ],
)
def test_an_explosion_runs_out_of_steps(document: Any, path: str, language: Language) -> None:
    limits = QueryLimits(expression_chars=20_000)
    assert "steps" in refusal(document, path, language, limits).message


def test_shared_parts_are_weighed_each_time_they_would_be_written() -> None:
    limits = QueryLimits(result_weight=1000)
    assert "too large" in refusal(list(range(200)), "[@,@,@,@,@,@]", limits=limits).message
    assert len(select(list(range(200)), "[@,@]", "jmespath", limits)) == 2
    assert "too large" in refusal(["a" * 600] * 2, "$[*]", "jsonpath", limits).message


@pytest.mark.parametrize("language", ["jmespath", "jsonpath"])
def test_nesting_and_length_are_bounded_before_anything_is_parsed(language: Language) -> None:
    assert "nests brackets" in refusal({}, "[" * 33, language).message
    assert "characters" in refusal({}, "a" * 2049, language).message
    quoted = "a[?b=='" + "[" * 100 + "']"
    assert (
        select({"a": []}, quoted if language == "jmespath" else f"$.{quoted.replace('b', '@.b')}", language, LIMITS)
        == []
    )


@pytest.mark.parametrize("path", ["!" * 2000 + "a", "a|" * 1000 + "a", "a&&" * 600 + "a", "$[?" + "!" * 1900 + "@.a]"])
def test_nesting_without_brackets_is_refused_too(path: str) -> None:
    assert "nested too deeply" in refusal({"a": 1}, path, "jsonpath" if path[0] == "$" else "jmespath").message


@pytest.mark.promise("bounds.regex-linear")
def test_patterns_of_jsonpath_run_in_linear_time_and_bounded_memory() -> None:
    assert select(["a" * 50_000 + "!"], "$[?match(@, '(a+)+')]", "jsonpath", LIMITS) == []
    assert select({"t": ["x"], "p": "(" * 900}, "$.t[?match(@, $.p)]", "jsonpath", LIMITS) == []
    # Longer nesting would end the process inside the library that checks I-Regexps.
    assert "at most 1000" in refusal({"t": ["x"], "p": "(" * 100_000}, "$.t[?search(@, $.p)]", "jsonpath").message


def test_a_deep_document_is_refused_and_not_crashed_on() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert "deeply" in refusal(deep, "$..*", "jsonpath").message
    assert select(deep, "[0]", "jmespath", LIMITS) == deep[0]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@given(st.text(alphabet="$@.*[]()?:,'\"`&|!=<>{}ab01- \\", max_size=24), st.sampled_from(["jmespath", "jsonpath"]))
def test_any_path_selects_or_is_refused(path: str, language: Language) -> None:
    found = outcome(select, {"a": [1, {"b": "x"}], "b": {"a": None}}, path, language, LIMITS)
    assert not isinstance(found, ToolError) or found.kind is ErrorKind.INVALID_INPUT
