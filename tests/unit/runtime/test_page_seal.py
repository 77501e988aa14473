"""The seal of page tokens: one for each caller and question."""

from __future__ import annotations

from toolhub_service.runtime.page_seal import PageSeal


def test_no_two_callers_and_questions_have_one_seal() -> None:
    seal = PageSeal(b"k" * 32)
    assert seal.open(seal.seal("c", "ab", ""), "a", "b") is None
    assert seal.open(seal.seal("bc", "a", ""), "a", "b") is None
    assert seal.open(seal.seal("c", "a", "b"), "a", "b") == "c"
    assert seal.seal("", "a", "b") == ""
