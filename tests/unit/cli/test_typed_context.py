"""The context of calls typed by hand."""

from __future__ import annotations

from toolhub_service.cli.call import typed_context


def test_the_same_words_typed_again_are_a_task_of_their_own_in_the_same_workspace() -> None:
    first, second = typed_context("cli"), typed_context("cli")
    assert first.request_id == second.request_id == "cli"
    assert first.task_id
    assert first.task_id != second.task_id
