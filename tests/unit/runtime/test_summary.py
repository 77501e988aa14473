from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.record import SUMMARY_MAX_BYTES, summarise, summarise_for_log
from toolhub_service.schema.canonical_json import dumps

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=1_500),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=300), inner, max_size=25),
    max_leaves=30,
)


@given(args=st.dictionaries(st.text(max_size=20), values, max_size=5))
@settings(max_examples=60, deadline=None)
def test_summary_is_at_most_one_kibibyte_of_text(args: dict[str, Any]) -> None:
    assert len(summarise(args, Redactor()).encode()) <= SUMMARY_MAX_BYTES


def test_small_arguments_are_shown_whole() -> None:
    args: JsonObject = {"path": "a.txt", "lines": [1, 2, 3], "deep": {"er": True}}
    assert json.loads(summarise(args, Redactor())) == args


def test_long_strings_and_lists_are_outlined() -> None:
    shown = json.loads(summarise({"text": "x" * 5_000, "rows": list(range(500))}, Redactor()))
    assert len(shown["text"]) == 201
    assert shown["text"].endswith("…")
    assert len(shown["rows"]) == 20


def test_secrets_do_not_survive_by_name_or_by_shape() -> None:
    shown = summarise({"api_key": "hunter2-canary", "header": "Bearer abcdefghijklmnopqrstuvwxyz012345"}, Redactor())
    assert "hunter2" not in shown
    assert "abcdefghijklmnop" not in shown


def test_log_gets_short_arguments_as_they_are_and_hides_what_is_secret_itself() -> None:
    text = b'{"api_key":"hunter2-canary"}'
    assert summarise_for_log({"api_key": "hunter2-canary"}, text, Redactor()) == text.decode()


def test_long_arguments_are_hidden_before_they_are_cut_for_the_log_too() -> None:
    args: JsonObject = {"api_key": "hunter2-canary", "note": "x" * 190 + " Bearer abcdefghijklmnopqrstuvwxyz012345"}
    shown = summarise_for_log(args, dumps(args), Redactor())
    assert "hunter2" not in shown
    assert "abcdef" not in shown


def test_secret_across_the_cut_does_not_survive_either() -> None:
    shown = summarise({"note": "x" * 190 + " Bearer abcdefghijklmnopqrstuvwxyz012345"}, Redactor())
    assert "abcdef" not in shown
