from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.guards.paths import DEPTH, NAME_BYTES, PATH_BYTES, check_path, workspace_folder_name


def kind_of(path: str) -> ErrorKind:
    with pytest.raises(ToolFailure) as refused:
        check_path(path)
    assert refused.value.error.message.endswith((".", "/"))
    return refused.value.error.kind


@pytest.mark.parametrize(
    ("path", "checked"),
    [
        ("a", "a"),
        ("a/b.txt", "a/b.txt"),
        (".", "."),
        ("./", "."),
        ("./a//b/./c/", "a/b/c"),
        ("a/../b", "b"),
        ("a/b/../../c", "c"),
        ("a/..", "."),
        ("...", "..."),
        ("..a/b..", "..a/b.."),
        ("~/x", "~/x"),
        ("日本語/ファイル", "日本語/ファイル"),
        ("%2e%2e/etc", "%2e%2e/etc"),
        ("a b", "a b"),
        ("notes: today/a", "notes: today/a"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("-rf", "-rf"),
    ],
)
def test_a_path_is_reported_in_its_one_spelling(path: str, checked: str) -> None:
    assert check_path(path) == checked
    assert check_path(checked) == checked


@pytest.mark.parametrize(
    "path", ["/", "/etc/passwd", "//x", "..", "../x", "a/../..", "a/../../b", "./..", "C:\\x", "c:/x", "a/b/../../../c"]
)
def test_a_path_that_leaves_the_workspace_is_refused(path: str) -> None:
    assert kind_of(path) is ErrorKind.PATH_OUTSIDE_SANDBOX


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a\0b",
        "a\nb",
        "a\x1fb",
        "a\x7fb",
        "a\x85b",
        "a\u2028b",
        "a\u202egpj.exe",
        "a\u200bb",
        "a\u2060b",
        "\ufeffa",
        "file:///tmp/x",
        "file:x",
        "https://example.com/a",
        "a\ud800b",
        "\udcff",
        "a\\b",
        "..\\x",
    ],
)
def test_a_path_that_cannot_name_a_file_is_refused(path: str) -> None:
    assert kind_of(path) is ErrorKind.INVALID_INPUT


def test_lengths_are_counted_in_bytes() -> None:
    assert check_path("é" * (NAME_BYTES // 2))
    assert kind_of("é" * (NAME_BYTES // 2 + 1)) is ErrorKind.INVALID_INPUT
    assert check_path("a" * NAME_BYTES)
    assert kind_of("a" * (NAME_BYTES + 1)) is ErrorKind.INVALID_INPUT
    long = "/".join(["é" * 100] * 20)
    assert check_path(long)
    assert kind_of("/".join(["é" * 100] * 21)) is ErrorKind.INVALID_INPUT
    assert len(long.encode()) <= PATH_BYTES


def test_depth_is_bounded() -> None:
    assert check_path("/".join("a" * DEPTH))
    assert kind_of("/".join("a" * (DEPTH + 1))) is ErrorKind.INVALID_INPUT


@given(st.text(alphabet=st.sampled_from("./\\ab\0é\ud800%"), max_size=30))
def test_accepted_path_never_climbs_and_is_stable(path: str) -> None:
    try:
        checked = check_path(path)
    except ToolFailure:
        assert kind_of(path) in {ErrorKind.PATH_OUTSIDE_SANDBOX, ErrorKind.INVALID_INPUT}
        return
    assert checked == "." or all(part not in {"", ".", ".."} for part in checked.split("/"))
    assert check_path(checked) == checked


def read_back(folder_name: str) -> str | None:
    """The id that a folder name stands for; None when the name keeps only its digest."""
    if "%~" in folder_name:
        return None
    return "" if folder_name == "%" else unquote_to_bytes(folder_name).decode("utf-8", "surrogatepass")


@given(st.text(st.characters(), max_size=60))
def test_a_folder_name_is_safe_and_reads_back(id: str) -> None:
    name = workspace_folder_name(id)
    assert check_path(name) == name
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
