"""Globs: a star is any run of characters, everything else is itself."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.policy.patterns import Pattern, Patterns


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("local", "local", True),
        ("local", "local2", False),
        ("*", "", True),
        ("core/fs.*", "core/fs.readText", True),
        ("core/fs.*", "core/fsx", False),
        ("*.read*", "core/fs.readText", True),
        ("spiffe://a/*", "spiffe://a/ns/b/sa/c", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("[ab]?", "a1", False),
        ("[ab]?", "[ab]?", True),
        ("a.c", "abc", False),
    ],
)
def test_matches(pattern: str, name: str, matches: bool) -> None:
    assert Pattern(pattern).matches(name) is matches


@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=12))
def test_agrees_with_regular_expressions(pattern: str, name: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
    assert Pattern(pattern).matches(name) is expected
    assert fnmatch.fnmatchcase(name, pattern) is expected


def test_many_stars_take_linear_time() -> None:
    assert not Pattern("*a" * 100 + "b").matches("a" * 100_000)


def test_tells_which_one_matched_and_whether_by_name() -> None:
    patterns = Patterns(["core/*", "core/fs.readText"])
    match = patterns.match("core/fs.readText")
    assert match is not None
    assert match.text == "core/*"
    assert patterns.names("core/fs.readText")
    assert not patterns.names("core/*")
    assert patterns.match("x") is None
    assert not Patterns([])
