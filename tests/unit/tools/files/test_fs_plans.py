"""Plans of changes of files: what would happen now, or why it would fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.file_calls import OPENINGS, FileCalls, content_of
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.verdict import Sandbox
from toolhub_service.tools.files.tools import fs_tools
from toolhub_service.tools.workspace.entries import Counted, count_entry


@pytest.fixture(params=OPENINGS)
def calls(request: pytest.FixtureRequest, tmp_path: Path) -> FileCalls:
    return FileCalls(tmp_path / "work", OPENINGS[request.param])


def kind_of(planning: Callable[..., str], /, *args: str, **arguments: Any) -> ErrorKind:
    with pytest.raises(ToolFailure) as refused:
        planning(*args, **arguments)
    return refused.value.error.kind


def test_a_planned_deletion_states_its_size_and_deletes_nothing(calls: FileCalls) -> None:
    calls.put("d/e/g", "12")
    calls.put("d/h", "345")
    (calls.root / "d/link").symlink_to("/etc")
    before = content_of(calls.root)
    effect = calls.effects("deletePath", path="./d", confirm=True, recursive=True)
    length = len("/etc")
    assert effect == f'Delete "d": 3 files and 2 folders, {5 + length} bytes. This cannot be undone.'
    assert (
        calls.effects("deletePath", path="d/h", confirm=True) == 'Delete "d/h": 1 file, 3 bytes. This cannot be undone.'
    )
    assert content_of(calls.root) == before


def test_a_deletion_that_would_fail_is_reported(calls: FileCalls) -> None:
    calls.put("d/h", "345")
    (calls.root / "empty").mkdir()
    assert kind_of(calls.effects, "deletePath", path="gone", confirm=True) is ErrorKind.NOT_FOUND
    assert kind_of(calls.effects, "deletePath", path="d", confirm=True) is ErrorKind.INVALID_INPUT
    assert kind_of(calls.effects, "deletePath", path="d/h") is ErrorKind.INVALID_INPUT
    assert kind_of(calls.effects, "deletePath", path=".", confirm=True, recursive=True) is ErrorKind.INVALID_INPUT
    assert "1 folder, 0 bytes" in calls.effects("deletePath", path="empty", confirm=True)


def test_counting_stops_at_its_bound(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / "many" / str(number)).mkdir(parents=True)
    folder = os.open(tmp_path, os.O_PATH)
    try:
        assert str(count_entry(folder, "many", entries_max=10)) == "at least 10 folders, 0 bytes"
        assert count_entry(folder, "many") == Counted(folders=21)
    finally:
        os.close(folder)


def test_a_written_file_states_whether_it_was_replaced(calls: FileCalls) -> None:
    calls.put("old", "12345")
    assert calls.effects("writeText", path="a/new", text="é") == 'Write 2 bytes to the new file "a/new".'
    effect = calls.effects("writeText", path="old", text="1", overwrite=True)
    assert effect == 'Write 1 bytes to "old", replacing the 5 bytes there.'
    assert kind_of(calls.effects, "writeText", path="old", text="1") is ErrorKind.ALREADY_EXISTS
    assert kind_of(calls.effects, "writeText", path="a/new", text="1", mkdirp=False) is ErrorKind.NOT_FOUND
    calls.put("folder/x")
    assert kind_of(calls.effects, "writeText", path="folder", text="1", overwrite=True) is ErrorKind.INVALID_INPUT


def test_copying_and_moving_state_how_many_bytes_go_where(calls: FileCalls) -> None:
    calls.put("a", "12345")
    calls.put("b", "1")
    calls.put("d/x", "1")
    assert calls.effects("copy", source="a", destination="c") == 'Copy the 5 bytes of "a" to the new file "c".'
    replacing = calls.effects("move", source="a", destination="b", overwrite=True)
    assert replacing == 'Move the 5 bytes of "a" to "b", replacing the 1 bytes there.'
    assert calls.effects("move", source="d", destination="e") == 'Move the folder "d" to "e".'
    for name in ("copy", "move"):
        assert kind_of(calls.effects, name, source="a", destination="b") is ErrorKind.ALREADY_EXISTS
        assert kind_of(calls.effects, name, source="gone", destination="c") is ErrorKind.NOT_FOUND


def test_an_edit_describes_the_resulting_file(calls: FileCalls) -> None:
    calls.put("a", "one two one")
    effect = calls.effects("editText", path="a", oldText="one", newText="three", expectedCount=2)
    assert effect == 'Replace a text in 2 places of "a": 15 bytes instead of 11.'
    assert kind_of(calls.effects, "editText", path="a", oldText="one", newText="") is ErrorKind.INVALID_INPUT
    assert (calls.root / "a").read_text() == "one two one"


def test_a_replacement_that_policy_forbids_is_refused(tmp_path: Path) -> None:
    calls = FileCalls(tmp_path, OPENINGS["by_step"], Sandbox(may_overwrite=False))
    calls.put("a")
    assert kind_of(calls.effects, "writeText", path="a", text="", overwrite=True) is ErrorKind.POLICY_DENIED


def test_exactly_the_changing_tools_describe_their_effects() -> None:
    with_effects = {tool.name for tool in fs_tools() if "effects" in vars(type(tool))}
    assert with_effects == {tool.name for tool in fs_tools() if not tool.annotations.read_only}
