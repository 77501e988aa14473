"""`make check` refuses source that is out of shape and says what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SECTION = "def first() -> None: ...\n\n\n# The second subject.\n#\n# It has a heading.\n\n\ndef second() -> None: ...\n"
ATTACHED = "def first() -> None: ...\n\n\n# Why this value:\n# it was measured\n# in one run.\nLIMIT = 3\n"
LONG_FUNCTION = "def long() -> None:\n" + "    print()\n" * 60


@pytest.fixture(scope="module")
def check_sizes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_sizes", REPOSITORY / ".ci/check_sizes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(check_sizes: ModuleType, root: Path, **files: str) -> list[str]:
    folder = root / "service"
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return list(check_sizes.check_tree(root))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n" * 601, "service/a.py: 601 lines"),
        (LONG_FUNCTION, "service/a.py:1: long has 61 lines"),
        (SECTION, "service/a.py:4: a comment of 3 lines heads a section"),
        ("print(1, 2, 3, 4, 5, 6, 7)\n", "service/a.py:1: print is called with 7 positional arguments"),
    ],
)
def test_what_is_out_of_shape_is_named_with_its_place(
    check_sizes: ModuleType, tmp_path: Path, text: str, expected: str
) -> None:
    (line,) = check(check_sizes, tmp_path, a=text)
    assert line.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * 600,
        LONG_FUNCTION.removesuffix("    print()\n"),
        ATTACHED,
        SECTION.replace("#\n", ""),
        "print(1, 2, 3, 4, 5, 6, sep='', end='')\n",
        "run('git', 'log', '-n', '1', '--format', '%H', '--', path)\n",
    ],
)
def test_what_is_at_a_limit_passes(check_sizes: ModuleType, tmp_path: Path, text: str) -> None:
    assert check(check_sizes, tmp_path, a=text) == []


def test_a_folder_of_more_than_22_files_is_named(check_sizes: ModuleType, tmp_path: Path) -> None:
    files = {f"m{number}": "" for number in range(23)}
    assert check(check_sizes, tmp_path, **files) == [
        "service: 23 files, at most 22: give one of its subjects a folder",
    ]
