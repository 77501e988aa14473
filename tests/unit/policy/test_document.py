"""Globs: a star is any run of characters, everything else is itself."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.planned_calls import DELETE_PATH, READ_TEXT, REQUEST, RUN, TIME_NOW, WRITE_TEXT, a_call, a_tool
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.document import DeniedCommandRule, Egress, PolicyDocument, canonical_bytes
from toolhub_service.policy.patterns import Pattern, Patterns
from toolhub_service.policy.starter import STARTER, complete

FIRST_REVISION = "bf1a18114255bd16e1c1417ee3866b77d573acaf8a8db2c9885e5d46f4d330e4"


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
def test_globs_match(pattern: str, name: str, matches: bool) -> None:
    assert Pattern(pattern).matches(name) is matches


@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=12))
def test_globs_agree_with_regular_expressions(pattern: str, name: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
    assert Pattern(pattern).matches(name) is expected
    assert fnmatch.fnmatchcase(name, pattern) is expected


def test_many_stars_take_linear_time() -> None:
    assert not Pattern("*a" * 100 + "b").matches("a" * 100_000)


def test_patterns_return_the_match_and_whether_it_is_exact() -> None:
    patterns = Patterns(["core/*", "core/fs.readText"])
    match = patterns.match("core/fs.readText")
    assert match is not None
    assert match.text == "core/*"
    assert patterns.names("core/fs.readText")
    assert not patterns.names("core/*")
    assert patterns.match("x") is None
    assert not Patterns([])


REMEMBER = a_tool("core/memory.write", "write:memory")
RECALL = a_tool("core/memory.search", "read:memory", read_only=True)


@pytest.mark.promise("policy.safe-first-run")
@pytest.mark.parametrize("tool", [TIME_NOW, READ_TEXT, WRITE_TEXT, REMEMBER, RECALL], ids=lambda tool: tool.name)
def test_local_may_work_with_its_files_its_memory_and_the_utilities(tool: ToolSpec) -> None:
    source = PolicySnapshot()
    assert source.decide(a_call(tool, {"path": "notes/a.md"})).rule_id == "grant:local"
    assert source.could_allow(Principal("local"), tool)


@pytest.mark.promise("policy.safe-first-run")
@pytest.mark.parametrize("tool", [REQUEST, RUN, DELETE_PATH, a_tool("x/gpu", "gpu")], ids=lambda tool: tool.name)
def test_local_may_not_dial_run_or_delete(tool: ToolSpec) -> None:
    source = PolicySnapshot()
    verdict = source.decide(a_call(tool, {"path": "a"}))
    assert (verdict.effect, verdict.rule_id) == (Effect.DENY, "capabilities")
    assert 'grants: [{principals: ["local"]' in verdict.operator_remedy
    assert not source.could_allow(Principal("local"), tool)


@pytest.mark.promise("policy.default-deny")
def test_another_principal_is_granted_nothing() -> None:
    assert all(grant.principals == ("local",) for grant in STARTER.grants)
    assert PolicySnapshot().principal("local").roles == frozenset(Role)
    assert PolicySnapshot().principal("stranger").roles == frozenset()


def test_a_document_extends_the_starter_unless_it_extends_none() -> None:
    assert complete(PolicyDocument()).grants == STARTER.grants
    assert complete(PolicyDocument(extends="none")).grants == ()
    assert PolicySnapshot.load("extends: none").decide(a_call(TIME_NOW)).effect is Effect.DENY


def test_keys_that_came_later_change_no_revision_while_they_are_left_out() -> None:
    """An approval that was open when the hub was updated must still be usable."""
    kept = canonical_bytes(PolicyDocument(egress=(Egress(hosts=("a.example",)),)))
    assert not any(name in kept for name in (b"denied_commands", b"blocked_cidrs", b"retry_with_key", b"approval_by_d"))
    for changed in (
        PolicyDocument(blocked_cidrs=("203.0.113.0/24",)),
        PolicyDocument(denied_commands=(DeniedCommandRule(id="x", pattern="x"),)),
        PolicyDocument(approval_by_default=()),
        PolicyDocument(egress=(Egress(hosts=("a.example",), retry_with_key=True),)),
    ):
        assert canonical_bytes(changed) not in (kept, canonical_bytes(PolicyDocument()))


def test_the_revision_of_the_starter_policy_is_that_of_the_first_version() -> None:
    assert PolicySnapshot().revision == FIRST_REVISION
