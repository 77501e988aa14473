from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.guards.folder_names import workspace_folder_name
from toolhub_service.guards.paths import NAME_BYTES, judge_path


def read_back(folder_name: str) -> str | None:
    """The id that a folder name stands for; None when the name keeps only its digest."""
    if "%~" in folder_name:
        return None
    return "" if folder_name == "%" else unquote_to_bytes(folder_name).decode("utf-8", "surrogatepass")


@given(st.text(st.characters(), max_size=60))
def test_a_folder_name_is_safe_and_reads_back(id: str) -> None:
    name = workspace_folder_name(id)
    assert judge_path(name) == name
    assert "/" not in name
    assert name[0] not in ".-"
    assert read_back(name) in {id, None}
    assert read_back(name) == id or len(name) > 100


@pytest.mark.parametrize(
    "id", ["", ".", "..", "-rf", "a/b", "spiffe://example.org/agent", "%", "%~", "%2E", "日本語", "A", "a"]
)
def test_awkward_ids_read_back(id: str) -> None:
    assert read_back(workspace_folder_name(id)) == id


def test_ids_of_any_length_have_folders_of_their_own() -> None:
    names = {workspace_folder_name("x" * length) for length in range(150, 1200)}
    assert len(names) == 1050
    assert all(len(name) <= NAME_BYTES for name in names)
    assert read_back(workspace_folder_name("x" * 1000)) is None


def test_the_name_of_a_long_id_cannot_be_taken_by_another_id() -> None:
    taken = workspace_folder_name("x" * 1000)
    assert workspace_folder_name(taken) != taken
