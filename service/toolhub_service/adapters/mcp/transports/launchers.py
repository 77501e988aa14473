"""What programs say on standard error when they do not start; launchers (npx, uvx, docker run …) install first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from toolhub_service.adapters.upstream import one_line

_LINE_MAX_CHARS: Final = 160
_NPX_FOLDER: Final = re.compile(r"(/[^\s'\":]{1,300}/_npx/[0-9a-f]{6,64})")
_NPX_BROKEN: Final = re.compile(r"Cannot find (?:module|package)|MODULE_NOT_FOUND|ENOTEMPTY")
_UV_BROKEN: Final = re.compile(r"[Ff]ailed to (?:read|deserialize|open)[^\n]*(?:/uv/|cache)")


def installing(lines: Iterable[str], since_s: float) -> str:
    """Return that the program is still starting, with its last line on standard error."""
    return f"It is starting, and may be installing first ({since_s:.0f} s so far). {last_line(lines)}".rstrip()


def last_line(lines: Iterable[str]) -> str:
    """Return a sentence with the last line that is not empty; empty without one. Secrets are not masked."""
    last = next((line for line in reversed(list(lines)) if line.strip()), "")
    return f"Its last line: {one_line(last, _LINE_MAX_CHARS)}" if last else ""


def broken_cache_advice(lines: Iterable[str]) -> str:
    """Return how to remove a cache that an interrupted installation has left; empty when the lines say no such
    thing."""
    text = "\n".join(lines)
    folder = _NPX_FOLDER.search(text)
    if folder is not None and _NPX_BROKEN.search(text):
        place = folder[1].replace(str(Path.home()), "~", 1)
        return f"npx has kept a half-installed copy: remove it with `rm -rf {place}`, and the next start installs anew."
    if _UV_BROKEN.search(text):
        return "The cache of uv is damaged: remove it with `uv cache clean`, and the next start installs anew."
    return ""
