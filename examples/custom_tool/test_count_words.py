"""How a custom tool is tested: as a plain object, without a hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from acme_tools.text import CountWords

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.result import SILENT
from toolhub_service.domain.verdict import Constraints
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.workspace.workspace import Workspace


def context(folder: str) -> ToolContext:
    return ToolContext(
        call_id="call-1",
        principal_id="tester",
        request_id="request-1",
        deadline_s=60.0,
        constraints=Constraints(),
        sink=SILENT,
        open_workspace=lambda: Workspace(folder),
    )


def test_the_most_frequent_words_come_first(tmp_path: Path) -> None:
    tool = CountWords(ignore="the")
    answer = asyncio.run(tool.run(tool.In(text="the cat and the cat", top=1), context(str(tmp_path))))
    assert [(entry.word, entry.count) for entry in answer.words] == [("cat", 2)]
    assert answer.total_words == 3


def test_a_text_without_words_is_refused_with_advice(tmp_path: Path) -> None:
    tool = CountWords()
    with pytest.raises(ToolFailure) as caught:
        asyncio.run(tool.run(tool.In(text=" "), context(str(tmp_path))))
    assert "Send a text with words" in caught.value.error.message
