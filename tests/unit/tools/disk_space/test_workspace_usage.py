"""The accounts of workspaces: what is counted, by many writers at once, and what a recount corrects."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fakes.storage import FixedStorage, with_quota
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.tools.disk_space.disk_room import DiskRoom
from toolhub_service.tools.disk_space.workspace_usage import (
    BLOCK_BYTES,
    SHARED,
    WorkspaceUsage,
    charge_of,
    measure_folder,
)
from toolhub_service.tools.workspace.workspace import Workspace

EMPTY = 2 * BLOCK_BYTES
"""The folder of a principal, and that of a request."""
GROWING = """
import sys
from pathlib import Path
from tests.unit.tools.disk_space.test_workspace_usage import usage_in
account = usage_in(Path(sys.argv[1])).account("ann", "ann")
for _ in range(500):
    account.grow(4096)
    account.shrink(4096)
    account.grow(4096)
"""


def usage_in(folder: Path, storage: FixedStorage | None = None, *, is_shared: bool = False) -> WorkspaceUsage:
    root = folder / "workspaces"
    return WorkspaceUsage(
        str(root), folder / "counters", DiskRoom(root, 0), storage or FixedStorage(), is_shared=is_shared
    )


@contextmanager
def opened(usage: WorkspaceUsage, folder: Path, principal: str = "ann") -> Iterator[Workspace]:
    account = usage.account(principal, principal)
    workspace = Workspace(str(folder / "workspaces"), principal, "r1", account=account)
    try:
        yield workspace
    finally:
        workspace.close()


def put(workspace: Workspace, path: str, size_bytes: int, *, overwrite: bool = False) -> None:
    with workspace.write_atomic(path, overwrite=overwrite) as draft:
        draft.write(b"x" * size_bytes)


@pytest.mark.parametrize(("size_bytes", "blocks"), [(0, 1), (1, 1), (4_096, 1), (4_097, 2), (1_000_000, 245)])
def test_files_count_in_whole_blocks(size_bytes: int, blocks: int) -> None:
    assert charge_of(size_bytes) == blocks * BLOCK_BYTES


def test_counts_follow_writes_replacements_moves_and_deletions(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    with opened(usage, tmp_path) as workspace:
        assert usage.bytes_of_principal("ann") == EMPTY
        put(workspace, "a/b/file", 10_000)
        assert usage.bytes_of_principal("ann") == EMPTY + 2 * BLOCK_BYTES + 3 * BLOCK_BYTES
        put(workspace, "a/b/file", 1, overwrite=True)
        assert usage.bytes_of_principal("ann") == EMPTY + 3 * BLOCK_BYTES
        put(workspace, "other", 5_000)
        workspace.rename("other", "a/b/file", overwrite=True)
        assert usage.bytes_of_principal("ann") == EMPTY + 2 * BLOCK_BYTES + 2 * BLOCK_BYTES
        workspace.remove("a", recursive=True)
        assert usage.bytes_of_principal("ann") == EMPTY
    assert usage.refresh(0.0)["ann"].used_bytes == EMPTY


def test_a_draft_that_is_not_kept_is_not_counted(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    with opened(usage, tmp_path) as workspace:
        with suppress(RuntimeError), workspace.write_atomic("a") as draft:
            draft.write(b"x" * 100_000)
            raise RuntimeError
        assert usage.bytes_of_principal("ann") == EMPTY
        put(workspace, "taken", 10)
        before = usage.bytes_of_principal("ann")
        with pytest.raises(ToolFailure):
            put(workspace, "taken", 10)
        assert usage.bytes_of_principal("ann") == before


def test_a_bound_refuses_before_the_bytes_are_written(tmp_path: Path) -> None:
    usage = usage_in(tmp_path, with_quota(workspace=EMPTY + 10 * BLOCK_BYTES))
    with opened(usage, tmp_path) as workspace:
        put(workspace, "a", 9 * BLOCK_BYTES)
        with pytest.raises(ToolFailure) as refused:
            put(workspace, "b", 2 * BLOCK_BYTES)
        assert refused.value.error.kind is ErrorKind.BUDGET_EXCEEDED
        assert os.listdir(tmp_path / "workspaces" / "ann" / "r1") == ["a"]  # noqa: PTH208 - names alone
        put(workspace, "b", BLOCK_BYTES)
    with opened(usage, tmp_path, "bob") as workspace:
        put(workspace, "b", 5 * BLOCK_BYTES)


def test_threads_and_processes_count_together(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    (tmp_path / "counters").mkdir()
    others = [subprocess.Popen([sys.executable, "-c", GROWING, str(tmp_path)]) for _ in range(2)]
    account = usage.account("ann", "ann")

    def grow(_: int) -> None:
        for _ in range(250):
            account.grow(BLOCK_BYTES)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(grow, range(4)))
    assert [other.wait(60) for other in others] == [0, 0]
    assert usage.bytes_of_principal("ann") == (4 * 250 + 2 * 500) * BLOCK_BYTES


def test_a_recount_finds_what_a_program_wrote_and_follows_no_link(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    with opened(usage, tmp_path):
        pass
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 1_000_000)
    folder = tmp_path / "workspaces" / "ann" / "r1"
    (folder / "made").mkdir()
    (folder / "made" / "file").write_bytes(b"x" * 5_000)
    (folder / "link").symlink_to(outside)
    assert usage.refresh(3_600.0)["ann"].used_bytes == EMPTY + 4 * BLOCK_BYTES
    assert usage.refresh(3_600.0)["ann"].used_bytes == EMPTY + 4 * BLOCK_BYTES
    (folder / "made" / "file").unlink()
    usage.recount_soon("ann")
    assert usage.refresh(3_600.0)["ann"].used_bytes == EMPTY + 2 * BLOCK_BYTES


def test_a_recount_of_folders_from_before_there_were_counts_knows_their_principals(tmp_path: Path) -> None:
    folder = tmp_path / "workspaces" / "corp%3Aann%2Fx" / "r1"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 5_000)
    found = usage_in(tmp_path).refresh(3_600.0)
    assert {count.principal: count.used_bytes for count in found.values()} == {"corp:ann/x": EMPTY + 2 * BLOCK_BYTES}


def test_an_account_without_a_folder_is_forgotten(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    usage.account("gone", "gone").grow(BLOCK_BYTES)
    assert usage.refresh(0.0) == {}
    assert list((tmp_path / "counters").iterdir()) == []


def test_a_walk_is_bounded_and_can_be_stopped(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert measure_folder(str(tmp_path)) == 21 * BLOCK_BYTES
    assert measure_folder(str(tmp_path), entries_max=5) == 6 * BLOCK_BYTES
    stop = threading.Event()
    stop.set()
    with pytest.raises(ToolFailure):
        measure_folder(str(tmp_path), stop)


def test_counting_goes_on_where_the_counters_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "counters").write_text("a file in the place of the folder")
    usage = usage_in(tmp_path, with_quota(workspace=10 * BLOCK_BYTES))
    account = usage.account("ann", "ann")
    account.grow(9 * BLOCK_BYTES)
    assert usage.bytes_of_principal("ann") == 9 * BLOCK_BYTES
    with pytest.raises(ToolFailure):
        account.grow(2 * BLOCK_BYTES)
    account.shrink(5 * BLOCK_BYTES)
    account.grow(2 * BLOCK_BYTES)


def test_a_damaged_counter_counts_as_none_and_is_healed_by_a_recount(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    with opened(usage, tmp_path) as workspace:
        put(workspace, "a", 5_000)
        counted = usage.bytes_of_principal("ann")
        (tmp_path / "counters" / "ann").write_bytes(b"\xff")
        assert usage.bytes_of_principal("ann") == 0
        put(workspace, "b", 10)
    assert usage.refresh(3_600.0)["ann"].used_bytes == counted + BLOCK_BYTES


def test_a_workspace_that_all_share_has_one_account(tmp_path: Path) -> None:
    usage = usage_in(tmp_path, with_quota(workspace=10 * BLOCK_BYTES), is_shared=True)
    usage.account("ann", "").grow(6 * BLOCK_BYTES)
    with pytest.raises(ToolFailure):
        usage.account("bob", "").grow(6 * BLOCK_BYTES)
    assert usage.bytes_of_principal("bob") == 6 * BLOCK_BYTES
    assert list(usage.counters.all()) == [SHARED]


def test_what_is_only_read_changes_no_counter(tmp_path: Path) -> None:
    usage = usage_in(tmp_path)
    with opened(usage, tmp_path) as workspace:
        put(workspace, "a", 10)
    before = (tmp_path / "counters" / "ann").stat().st_mtime_ns
    with opened(usage, tmp_path) as workspace:
        workspace.open_read("a").close()
        workspace.stat("a")
        assert workspace.account is not None
        assert not workspace.account.has_grown
    assert (tmp_path / "counters" / "ann").stat().st_mtime_ns == before
