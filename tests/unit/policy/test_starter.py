"""The starter policy: what a first run may do, and what it may not."""

from __future__ import annotations

import pytest

from tests.fakes.planned_calls import DELETE_PATH, READ_TEXT, REQUEST, RUN, TIME_NOW, WRITE_TEXT, a_call, a_tool
from toolhub_service.domain.principal import Role
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.document import PolicyDocument
from toolhub_service.policy.snapshot import PolicySnapshot
from toolhub_service.policy.starter import STARTER, complete

REMEMBER = a_tool("core/memory.write", "write:memory")
RECALL = a_tool("core/memory.search", "read:memory", read_only=True)


@pytest.mark.promise("policy.safe-first-run")
@pytest.mark.parametrize("tool", [TIME_NOW, READ_TEXT, WRITE_TEXT, REMEMBER, RECALL], ids=lambda tool: tool.name)
def test_local_may_work_with_its_files_its_memory_and_the_utilities(tool: ToolSpec) -> None:
    source = PolicySnapshot()
    assert source.decide(a_call(tool, {"path": "notes/a.md"})).rule_id == "grant:local"
    assert source.could_allow("local", tool)


@pytest.mark.promise("policy.safe-first-run")
@pytest.mark.parametrize("tool", [REQUEST, RUN, DELETE_PATH, a_tool("x/gpu", "gpu")], ids=lambda tool: tool.name)
def test_local_may_not_dial_run_or_delete(tool: ToolSpec) -> None:
    source = PolicySnapshot()
    verdict = source.decide(a_call(tool, {"path": "a"}))
    assert (verdict.effect, verdict.rule_id) == (Effect.DENY, "capabilities")
    assert 'grants: [{principals: ["local"]' in verdict.remedy
    assert not source.could_allow("local", tool)


@pytest.mark.promise("policy.default-deny")
def test_nobody_else_is_granted_anything() -> None:
    assert all(grant.principals == ("local",) for grant in STARTER.grants)
    assert PolicySnapshot().principal("local").roles == frozenset(Role)
    assert PolicySnapshot().principal("stranger").roles == frozenset()


def test_a_document_adds_to_the_starter_unless_it_says_none() -> None:
    assert complete(PolicyDocument()).grants == STARTER.grants
    assert complete(PolicyDocument(extends="none")).grants == ()
    assert PolicySnapshot.load("extends: none").decide(a_call(TIME_NOW)).effect is Effect.DENY
