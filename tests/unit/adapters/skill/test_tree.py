from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.adapters.skill.skill_folders import write_skill
from toolhub_service.adapters.skill.tree import (
    TreeChanged,
    TreeLimits,
    TreeRefused,
    copy_tree,
    read_file,
    read_tree,
    stamp_of,
)

SMALL = TreeLimits(files_max=20, total_max_bytes=2_000, file_max_bytes=1_000, depth_max=3, name_max_bytes=40)


def test_digest_is_over_paths_bytes_and_executable_bits_and_nothing_else(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, files={"scripts/run.py": "print(1)\n", ".git/HEAD": "x", "__pycache__/a.pyc": b"\0"})
    first = read_tree(folder)
    assert [file.path for file in first.files] == ["SKILL.md", "scripts/run.py"]
    (folder / ".git" / "HEAD").write_text("y")
    os.utime(folder / "SKILL.md", (1, 1))
    assert read_tree(folder).digest == first.digest

    seen = {first.digest}
    script = folder / "scripts/run.py"
    changes: tuple[Callable[[], object], ...] = (
        lambda: script.write_text("print(2)\n"),
        lambda: script.chmod(0o755),
        lambda: script.rename(folder / "scripts/walk.py"),
        lambda: (folder / "scripts/link.py").symlink_to("walk.py"),
    )
    for change in changes:
        stamp = stamp_of(folder)
        change()
        digest = read_tree(folder).digest
        assert digest not in seen
        assert stamp_of(folder) != stamp
        seen.add(digest)


Make = Callable[[Path], None]


def _links(**targets: str) -> Make:
    """A symbolic link by name; the folder `d` is there."""

    def make(folder: Path) -> None:
        (folder / "d").mkdir()
        for name, target in targets.items():
            (folder / name.replace("__", "/")).symlink_to(target)

    return make


def _file(name: str, size_bytes: int = 0, count: int = 1) -> Make:
    def make(folder: Path) -> None:
        for number in range(count):
            with (folder / name.format(number)).open("xb") as file:
                file.truncate(size_bytes)

    return make


def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        descriptor = os.open(folder, os.O_PATH)  # a whole path may be too long for an address
        made.bind(f"/proc/self/fd/{descriptor}/s")
        os.close(descriptor)


REFUSED: dict[str, tuple[Make, str]] = {
    "link out": (_links(out="../../etc/passwd"), "`out`: a link that leads out"),
    "absolute link": (_links(out="/etc/passwd"), "a link that leads out"),
    "link to a link out": (_links(a="b", b=".."), "a link that leads out"),
    "out through a folder's link": (_links(l="d", m="l/../../x"), "`m`: a link that leads out"),
    "loop": (_links(a="b", b="a"), "in a circle"),
    "link to its own folder": (_links(d__l="../d"), "in a circle"),
    "link to the whole": (_links(l="."), "in a circle"),
    "dangling": (_links(l="nothing"), "nowhere"),
    "fifo": (lambda folder: os.mkfifo(folder / "p"), "`p`: neither a file nor a folder"),
    "socket": (_socket, "neither a file nor a folder"),
    "many files": (_file("{}", count=30), "more than 20 files"),
    "deep": (lambda folder: (folder / "a/b/c/d").mkdir(parents=True), "more than 3 folders within each other"),
    "large file": (_file("x", 1_001), "more than 1,000 bytes"),
    "large together": (_file("{}", 900, count=3), "2,000 together"),
    "endless file": (_file("x", 2**40), "more than 1,000 bytes"),
    "long name": (_file("x" * 41), "a name of more than 40 bytes"),
    "bidi name": (_file("a\u202egnp.py"), "`a\\u202egnp.py`: a name with"),
    "line end": (_file("a\nb"), "hidden character"),
    "backslash": (_file("..\\x"), "backslash"),
    "not UTF-8": (_file(os.fsdecode(b"\xff")), "not UTF-8"),
}


def test_a_tree_with_anything_but_plain_files_is_refused(tmp_path: Path) -> None:
    for case, (make, message) in REFUSED.items():
        folder = write_skill(tmp_path / case)
        make(folder)
        with pytest.raises(TreeRefused) as refused:
            read_tree(folder, SMALL)
        assert message in str(refused.value), case
        assert str(tmp_path) not in str(refused.value), case


def test_links_within_the_tree_are_kept_and_followed(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, files={"a/b/real.txt": "text", "c/x": ""})
    (folder / "c/up").symlink_to("../a")
    (folder / "file").symlink_to("c/up/b/./real.txt")
    tree = read_tree(folder)
    assert tree.find("file") == tree.find("c/up/b/real.txt") == tree.by_path["a/b/real.txt"]
    assert [tree.find(path) for path in ("", "a", "../SKILL.md", "a/b/real.txt/x", "/SKILL.md/..", "none")] == [
        None
    ] * 6
    copy_tree(folder, tree, tmp_path / "copy")
    assert (tmp_path / "copy/file").read_text() == "text"
    assert read_tree(tmp_path / "copy") == tree


@pytest.mark.promise("skills.read-as-pinned")
def test_bytes_that_changed_after_they_were_digested_are_neither_read_nor_copied(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, files={"scripts/run.py": "print(1)\n"})
    tree = read_tree(folder)
    file = tree.by_path["scripts/run.py"]
    path = folder / "scripts/run.py"
    secret = tmp_path / "secret"
    secret.write_bytes(path.read_bytes())

    def other_bytes() -> None:
        path.write_text("print(2)\n")

    def link_to_the_same_bytes() -> None:
        path.unlink()
        path.symlink_to(secret)

    def folder_is_a_link() -> None:
        (folder / "scripts").rename(tmp_path / "elsewhere")
        (folder / "scripts").symlink_to(tmp_path / "elsewhere")

    def pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    swaps: tuple[Callable[[], None], ...] = (other_bytes, path.unlink, link_to_the_same_bytes, pipe)
    for at, swap in enumerate(swaps):
        swap()
        with pytest.raises(TreeChanged, match=r"`scripts/run.py` is another file"):
            read_file(folder, file, 1_000)
        with pytest.raises(TreeChanged):
            copy_tree(folder, tree, tmp_path / f"copy{at}")
        path.unlink(missing_ok=True)
        path.write_text("print(1)\n")
        assert read_file(folder, file, 1_000) == b"print(1)\n"
    folder_is_a_link()
    with pytest.raises(TreeChanged):
        read_file(folder, file, 1_000)
