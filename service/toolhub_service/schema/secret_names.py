"""Property names whose values must never be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_SECRET: Final = re.compile(
    r"pass(?:word|wd|phrase|code)|\bpwd\b|secret|token|api[-_ ]?key|apikey|access[-_ ]?key|private[-_ ]?key|auth"
    r"|credential|cookie|session[-_ ]?id|bearer|signature|\bpin\b|\botp\b|\bcvv\b|\bssn\b",
    re.IGNORECASE,
)


def is_secret_path(path: Iterable[str | int]) -> bool:
    """Whether any name on the way to a value looks like that of a secret; wrong in doubt on the careful side."""
    return any(isinstance(name, str) and _SECRET.search(name) is not None for name in path)
