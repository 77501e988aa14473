"""Every file and folder that CONTRIBUTING.md names exists, but for those that its recipes make."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.unit.docs.pages_of_docs import ROOT, inline_code

PAGE = ROOT / "CONTRIBUTING.md"
BASES = (ROOT, ROOT / "service/toolhub_service")
"""Paths are relative to the first, in recipes that have named it also to the second."""
MADE = {
    "adapters/acme/adapter.py",
    "adapters/acme/kind.py",
    "domain/note.py",
    "stores/note_records.py",
    "tests/unit/tools/test_util_text_reverse.py",
}
"""By whoever follows a recipe."""
MADE |= {"build/docs-site/site", "build/tests.xml", ".venv"}
"""By make."""
_FILE = re.compile(r"[\w.*<>-]+\.(?:py|yaml|toml|json|md|proto|xml)|[\w.*<>/-]+/[\w.*<>/-]*")


def _paths() -> Iterator[str]:
    for code in inline_code(PAGE):
        is_tag = re.search(r"/v\d", code)
        if _FILE.fullmatch(code) and not is_tag:
            yield code


PATHS = sorted(set(_paths()))


def _exists(path: str) -> bool:
    pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
    wholes = [next(base.glob(pattern), None) for base in BASES]
    # A name without a folder stands beside the file that the sentence has named.
    return any(wholes) or ("/" not in path and any(next(base.rglob(pattern), None) for base in BASES[1:]))


@pytest.mark.parametrize("path", [path for path in PATHS if not path.endswith(tuple(MADE))])
def test_a_path_that_is_named_exists(path: str) -> None:
    assert _exists(path), f"CONTRIBUTING.md names {path}, which does not exist"


def test_the_page_names_many_paths() -> None:
    assert len(PATHS) > 50
    assert not _exists("fs_*.py")
    assert not _exists("service/toolhub_service/tools/fs_tools.py")
