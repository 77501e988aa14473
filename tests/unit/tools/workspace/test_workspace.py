from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.file_calls import OPENINGS, content_of, descriptors
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.tools.workspace import rename
from toolhub_service.tools.workspace.opening import O_FOLDER, Opening, best_opening, open_beneath, open_by_step
from toolhub_service.tools.workspace.workspace import Workspace


@pytest.fixture(params=OPENINGS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    opened = Workspace(str(tmp_path / "work"), opening=OPENINGS[request.param])
    before = descriptors()
    yield opened
    assert descriptors() == before, "a descriptor was leaked"
    opened.close()


@pytest.fixture
def root(workspace: Workspace) -> Path:
    return Path(workspace.folder)


def refused(action: Callable[[], object]) -> ErrorKind:
    with pytest.raises(ToolFailure) as failure:
        action()
    assert "/tmp" not in failure.value.error.message
    return failure.value.error.kind


def write(workspace: Workspace, path: str, data: bytes = b"new", **options: Any) -> None:
    with workspace.write_atomic(path, **options) as files:
        files.write(data)


def test_openat2_is_chosen_where_the_kernel_has_it() -> None:
    root = os.open("/", O_FOLDER)
    try:
        os.close(open_beneath(root, ".", O_FOLDER))
        works = True
    except OSError:
        works = False
    finally:
        os.close(root)
    assert best_opening() is (open_beneath if works else open_by_step)


@pytest.mark.parametrize("path", ["..", "../outside", "a/../../outside", "/", "/etc"])
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_an_opening_refuses_what_climbs_out_by_itself(tmp_path: Path, opening: Opening, path: str) -> None:
    (tmp_path / "work" / "a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    root = os.open(tmp_path / "work", O_FOLDER)
    with pytest.raises(OSError, match="cross-device") as refusal:
        opening(root, path, O_FOLDER)
    os.close(root)
    assert refusal.value.errno == errno.EXDEV


@pytest.mark.parametrize("folder", ["..", "../outside", "/etc"])
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_a_workspace_is_not_opened_elsewhere_by_its_folder_names(tmp_path: Path, opening: Opening, folder: str) -> None:
    (tmp_path / "work").mkdir()
    assert refused(lambda: Workspace(str(tmp_path / "work"), folder, opening=opening)) is ErrorKind.IO_ERROR
    assert content_of(tmp_path) == {"work": None}


def test_the_folder_is_made_with_the_ones_above_it_for_its_owner_only(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path / "root"), "local", "request")
    assert Path(workspace.folder) == tmp_path / "root" / "local" / "request"
    assert Path(workspace.folder).stat().st_mode & 0o777 == 0o700
    workspace.close()
    workspace.close()
    assert refused(lambda: workspace.stat(".")) is ErrorKind.IO_ERROR


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_a_principal_folder_that_is_a_link_is_not_entered(tmp_path: Path, opening: Opening) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root" / "local").symlink_to(tmp_path / "elsewhere")
    before = descriptors()
    assert refused(lambda: Workspace(str(tmp_path / "root"), "local", opening=opening)) is ErrorKind.IO_ERROR
    assert descriptors() == before


def test_a_file_is_read_with_its_status(workspace: Workspace, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "f.txt").write_text("text")
    with workspace.open_read("a/./f.txt") as file:
        assert (file.path, file.size_bytes, file.read(100)) == ("a/f.txt", 4, b"text")
    assert workspace.stat("a/f.txt").size_bytes == 4
    assert workspace.stat("a").type == "dir"
    assert workspace.stat(".").type == "dir"


def test_a_missing_path_or_one_of_another_kind_is_reported(workspace: Workspace, root: Path) -> None:
    (root / "folder").mkdir()
    (root / "file").write_text("x")
    assert refused(lambda: workspace.open_read("nope")) is ErrorKind.NOT_FOUND
    assert refused(lambda: workspace.open_read("nope/deeper")) is ErrorKind.NOT_FOUND
    assert refused(lambda: workspace.open_read("folder")) is ErrorKind.INVALID_INPUT
    assert refused(lambda: workspace.open_read("file/below")) is ErrorKind.INVALID_INPUT
    assert refused(lambda: workspace.stat("nope")) is ErrorKind.NOT_FOUND


@pytest.mark.promise("fs.regular-files-only")
def test_pipes_sockets_and_devices_are_never_opened(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(root, os.O_DIRECTORY)
    listener.bind(f"/proc/self/fd/{here}/socket")
    os.close(here)
    special = ["pipe", "socket"]
    try:
        os.mknod(root / "zero", 0o600 | 0o020000, os.makedev(1, 5))
        special.append("zero")
    except PermissionError:
        pass
    for name in special:
        assert refused(partial(workspace.open_read, name)) is ErrorKind.INVALID_INPUT
        assert refused(partial(write, workspace, name, overwrite=True)) is ErrorKind.INVALID_INPUT
        assert workspace.stat(name).type == "other"
    listener.close()


def test_links_out_are_refused_in_any_spelling(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    (root / "abs").symlink_to(tmp_path / "outside")
    (root / "rel").symlink_to("../outside")
    (root / "file").symlink_to(tmp_path / "outside" / "secret.txt")
    (root / "proc").symlink_to("/proc/self/root")
    (root / "loop").symlink_to("loop")
    before = content_of(tmp_path / "outside")
    for path in ["abs/secret.txt", "rel/secret.txt", "file", "proc/etc/passwd", "loop", "loop/x"]:
        assert refused(partial(workspace.open_read, path)) is ErrorKind.PATH_OUTSIDE_SANDBOX
    for path in ["abs/new.txt", "rel/new.txt", "abs/deep/new.txt", "proc/var/new.txt"]:
        assert refused(partial(write, workspace, path)) is ErrorKind.PATH_OUTSIDE_SANDBOX
    assert refused(lambda: workspace.remove("abs/secret.txt")) is ErrorKind.PATH_OUTSIDE_SANDBOX
    assert refused(lambda: workspace.rename("abs/secret.txt", "mine")) is ErrorKind.PATH_OUTSIDE_SANDBOX
    assert refused(lambda: workspace.open_to_edit("file")) is ErrorKind.PATH_OUTSIDE_SANDBOX
    assert content_of(tmp_path / "outside") == before


def test_links_that_stay_inside_are_followed_by_openat2_only(tmp_path: Path) -> None:
    root = tmp_path / "work"
    (root / "a").mkdir(parents=True)
    (root / "a" / "f").write_text("inside")
    (root / "link").symlink_to("a")
    with closing(Workspace(str(root), opening=OPENINGS["openat2"])) as beneath, beneath.open_read("link/f") as file:
        assert file.read(10) == b"inside"
    with closing(Workspace(str(root), opening=OPENINGS["by_step"])) as by_step:
        assert refused(lambda: by_step.open_read("link/f")) is ErrorKind.PATH_OUTSIDE_SANDBOX


def test_other_mounts_are_not_entered() -> None:
    if not Path("/proc/self/mounts").exists():
        pytest.skip("no other file system is mounted below /, as /proc is on Linux: run it on Linux")
    for opening in OPENINGS.values():
        workspace = Workspace("/", opening=opening)
        before = descriptors()
        assert refused(partial(workspace.open_read, "proc/self/status")) is ErrorKind.PATH_OUTSIDE_SANDBOX
        assert refused(partial(workspace.remove, "proc/1/comm")) is ErrorKind.PATH_OUTSIDE_SANDBOX
        assert descriptors() == before
        workspace.close()


@pytest.mark.promise("fs.whole-writes")
def test_a_write_is_whole_or_nothing(workspace: Workspace, root: Path) -> None:
    write(workspace, "a/b/new.txt")
    assert content_of(root) == {"a": None, "a/b": None, "a/b/new.txt": b"new"}
    with suppress(ZeroDivisionError), workspace.write_atomic("a/b/other.txt") as files:
        files.write(b"half")
        raise ZeroDivisionError
    assert content_of(root) == {"a": None, "a/b": None, "a/b/new.txt": b"new"}


def test_a_draft_is_invisible_until_it_is_committed(workspace: Workspace, root: Path) -> None:
    with workspace.write_atomic("new.txt") as files:
        files.write(b"one")
        assert not (root / "new.txt").exists()
        files.write(memoryview(b" two"))
    assert (root / "new.txt").read_bytes() == b"one two"
    assert (files.written_bytes, len(files.sha256)) == (7, 64)


def test_a_draft_past_its_bound_is_refused_and_removed(workspace: Workspace, root: Path) -> None:
    assert refused(lambda: write(workspace, "big", b"12345", max_bytes=4)) is ErrorKind.FILE_TOO_LARGE
    assert content_of(root) == {}


def test_a_taken_name_is_refused_unless_overwritten_and_keeps_its_mode(workspace: Workspace, root: Path) -> None:
    (root / "run.sh").write_text("old")
    (root / "run.sh").chmod(0o755)
    assert refused(lambda: write(workspace, "run.sh")) is ErrorKind.ALREADY_EXISTS
    assert (root / "run.sh").read_text() == "old"
    write(workspace, "run.sh", overwrite=True)
    assert (root / "run.sh").read_text() == "new"
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o755


def test_a_name_taken_while_the_draft_is_written_is_not_replaced(workspace: Workspace, root: Path) -> None:
    def race() -> None:
        with workspace.write_atomic("f") as files:
            files.write(b"mine")
            (root / "f").write_text("theirs")

    assert refused(race) is ErrorKind.ALREADY_EXISTS
    assert content_of(root) == {"f": b"theirs"}


def test_exactly_one_of_many_writers_of_a_new_name_wins(workspace: Workspace, root: Path) -> None:
    won: list[int] = []
    lost: list[ErrorKind] = []
    start = threading.Barrier(8)

    def contend(number: int) -> None:
        start.wait()
        try:
            write(workspace, "contended", str(number).encode())
            won.append(number)
        except ToolFailure as failure:
            lost.append(failure.error.kind)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert lost == [ErrorKind.ALREADY_EXISTS] * 7
    assert content_of(root) == {"contended": str(won[0]).encode()}


def test_a_link_is_replaced_and_not_written_through(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to(tmp_path / "outside" / "secret.txt")
    write(workspace, "link", overwrite=True)
    assert (tmp_path / "outside" / "secret.txt").read_text() == "secret"
    assert not (root / "link").is_symlink()


def test_a_file_with_a_second_name_is_not_written(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    (root / "hard").hardlink_to(tmp_path / "outside" / "secret.txt")
    assert refused(lambda: write(workspace, "hard", overwrite=True)) is ErrorKind.PATH_OUTSIDE_SANDBOX
    (root / "mine").write_text("mine")
    assert refused(lambda: workspace.rename("mine", "hard", overwrite=True)) is ErrorKind.PATH_OUTSIDE_SANDBOX
    assert (tmp_path / "outside" / "secret.txt").read_text() == "secret"


def test_folders_are_made_and_standing_ones_left(workspace: Workspace, root: Path) -> None:
    write(workspace, "a/b/c/one")
    write(workspace, "a/b/c/two")
    assert sorted(entry.name for entry in (root / "a/b/c").iterdir()) == ["one", "two"]
    (root / "file").write_text("")
    assert refused(lambda: write(workspace, "file/x")) is ErrorKind.INVALID_INPUT
    assert refused(lambda: write(workspace, "nowhere/f", mkdirp=False)) is ErrorKind.NOT_FOUND


def test_a_deep_path_is_made_and_removed(workspace: Workspace, root: Path) -> None:
    deep = "/".join("d" * 200)
    write(workspace, f"{deep}/f")
    removed = workspace.remove("d", recursive=True)
    assert (removed.files, removed.folders, removed.size_bytes) == (1, 200, 3)
    assert content_of(root) == {}


def test_renames_refuse_taken_names_by_default(workspace: Workspace, root: Path) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    (root / "dir").mkdir()
    (root / "dir" / "x").write_text("x")
    assert refused(lambda: workspace.rename("a", "b")) is ErrorKind.ALREADY_EXISTS
    assert refused(lambda: workspace.rename("nope", "c")) is ErrorKind.NOT_FOUND
    assert refused(lambda: workspace.rename("a", "dir", overwrite=True)) is ErrorKind.INVALID_INPUT
    assert refused(lambda: workspace.rename("dir", "dir/inner")) is ErrorKind.INVALID_INPUT
    assert refused(lambda: workspace.rename(".", "c")) is ErrorKind.INVALID_INPUT
    workspace.rename("a", "b", overwrite=True)
    workspace.rename("dir", "deep/er")
    assert content_of(root) == {"b": b"a", "deep": None, "deep/er": None, "deep/er/x": b"x"}


def test_renames_are_as_strict_without_renameat2(
    workspace: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rename, "_renameat2", None)
    test_renames_refuse_taken_names_by_default(workspace, root)
    write(workspace, "written")
    assert refused(lambda: write(workspace, "written")) is ErrorKind.ALREADY_EXISTS
    assert (root / "written").stat().st_nlink == 1


def test_a_link_is_removed_and_not_what_it_points_at(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    (root / "tree").mkdir()
    (root / "tree" / "link").symlink_to(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside")
    assert workspace.remove("link", recursive=True).files == 1
    assert workspace.remove("tree", recursive=True).folders == 1
    assert content_of(tmp_path / "outside") == {"secret.txt": b"secret"}
    assert content_of(root) == {}


def test_full_folders_are_removed_only_recursively_and_the_workspace_never(workspace: Workspace, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_text("")
    (root / "empty").mkdir()
    assert refused(lambda: workspace.remove("d")) is ErrorKind.INVALID_INPUT
    assert refused(lambda: workspace.remove(".", recursive=True)) is ErrorKind.INVALID_INPUT
    assert refused(lambda: workspace.remove("nope")) is ErrorKind.NOT_FOUND
    assert workspace.remove("empty").folders == 1
    assert (root / "d" / "f").exists()


def test_a_held_file_is_not_edited_by_another(workspace: Workspace, root: Path) -> None:
    (root / "f").write_text("x")
    with workspace.open_to_edit("f"):
        with pytest.raises(ToolFailure) as failure:
            workspace.open_to_edit("f")
        assert failure.value.error.kind is ErrorKind.IO_ERROR
        assert failure.value.error.is_retryable
    workspace.open_to_edit("f").close()


def test_a_folder_descriptor_lists_and_closes(workspace: Workspace, root: Path) -> None:
    (root / "a").mkdir()
    (root / "a" / "f").write_text("")
    with workspace.open_folder("a") as descriptor:
        assert [entry.name for entry in os.scandir(descriptor)] == ["f"]
    assert refused(lambda: workspace.open_folder("a/f").__enter__()) is ErrorKind.INVALID_INPUT


def test_a_full_disk_is_reported_as_such(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device", "/somewhere/else")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ToolFailure) as failure:
        write(workspace, "f")
    monkeypatch.undo()
    assert failure.value.error.kind is ErrorKind.BUDGET_EXCEEDED
    assert failure.value.error.details["cause"] == "DISK_FULL"
    assert not failure.value.error.is_retryable
    assert "somewhere" not in failure.value.error.message
    assert content_of(root) == {}
