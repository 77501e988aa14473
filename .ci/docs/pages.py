"""Which pages of docs/ and tables of clients and contract are made from the code, and which of them are stale."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import cli_page
import client_errors
import configuration_page
import errors_page
import faces_page
import metrics_page
import original_names_page
import promises_page
import skill_manifest_page
import tools_page

PAGES: dict[str, Callable[[], str]] = {
    "docs/cli.md": cli_page.page,
    "docs/configuration.md": configuration_page.page,
    "docs/errors.md": errors_page.page,
    "docs/faces.md": faces_page.page,
    "docs/metrics.md": metrics_page.page,
    "docs/original-names.md": original_names_page.page,
    "docs/promises.md": promises_page.page,
    "docs/skill-manifest.md": skill_manifest_page.page,
    "docs/tools.md": tools_page.page,
}

TABLES: dict[str, Callable[[], str]] = {
    "clients/go/toolhub/errors.go": client_errors.go,
    "clients/python/toolhub_client/errors.py": client_errors.python,
    "clients/ts/src/errors.ts": client_errors.typescript,
    "docs/toolhub.schema.json": skill_manifest_page.schema,
    "proto/toolhub/v1/error_reason.proto": client_errors.contract,
}
"""What the clients and the contract know of errors, and what editors know of toolhub.json."""


def stale(root: Path) -> Iterator[tuple[str, str]]:
    """(name, right text) of every file below `root` that is missing or differs."""
    for name, make in (*PAGES.items(), *TABLES.items()):
        path, text = root / name, make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield name, text


def write(root: Path, texts: Mapping[str, str]) -> None:
    """Write files beside those of the names, and swap when all are written: an error before that changes none."""
    with contextlib.ExitStack() as unfinished:
        fresh = {root / name: (root / name).with_name(f".{Path(name).name}.new") for name in texts}
        for name, text in texts.items():
            unfinished.callback(fresh[root / name].unlink, missing_ok=True)
            fresh[root / name].write_text(text, encoding="utf-8")
        for path, written in fresh.items():
            written.replace(path)
