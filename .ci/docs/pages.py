"""Which pages of docs/ are made from the code, and which of them are stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import cli_page
import configuration_page
import errors_page
import tools_page

from toolhub_service.telemetry.names import metrics_reference

PAGES: dict[str, Callable[[], str]] = {
    "docs/cli.md": cli_page.page,
    "docs/configuration.md": configuration_page.page,
    "docs/errors.md": errors_page.page,
    "docs/metrics.md": metrics_reference,
    "docs/tools.md": tools_page.page,
}


def stale(root: Path) -> Iterator[tuple[str, str]]:
    """(name, right text) of every page below `root` that is missing or differs."""
    for name, make in PAGES.items():
        path, text = root / name, make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield name, text
