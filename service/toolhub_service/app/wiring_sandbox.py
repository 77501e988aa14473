"""Wires what holds code that is not the hub's: what is hidden from it, and whose it is."""

from __future__ import annotations

import os
from pathlib import Path

from toolhub_service.app.file_modes import trusted_files
from toolhub_service.app.paths import Paths
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.settings.document import Settings


def make_ladder(settings: Settings) -> Ladder:
    """One for a hub is enough: it tries the levels once."""
    paths = Paths(settings)
    return Ladder(
        own_files(settings),
        shown=[str(paths.workspaces)],
        user=settings.sandbox.user,
        bubblewrap=paths.bubblewrap,
    )


def own_files(settings: Settings) -> tuple[str, ...]:
    """The data folder, and every file outside of it that decides over calls or holds a secret."""
    named = os.environ.get("TOOLHUB_CONFIG", "")
    files = trusted_files(settings, Path(named) if named else None)
    # What a certificate authority publishes lies in /usr, and is no secret.
    within = [str(file) for file in files if not str(file.resolve()).startswith("/usr/")]
    return (str(Paths(settings).data_dir), *within)
