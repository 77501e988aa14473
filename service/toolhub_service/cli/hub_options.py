"""Options that say which hub and who calls, and which source of an option takes precedence.

Every command imports this module, and the contexts only where there are any: it is a tenth of their time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

DEFAULT_PORT: Final = 50051
DEFAULT_ADDRESS: Final = f"127.0.0.1:{DEFAULT_PORT}"

FILES: Final = ("ca_file", "cert_file", "key_file")
OPTIONS: Final = ("context_name", "address", "api_key", "tls", *FILES)

# Ranks: what has a higher one goes before.
BY_DEFAULT: Final = 0
BY_FILE: Final = 1
BY_ENVIRONMENT: Final = 2
TYPED: Final = 3

Given = Mapping[str, tuple[Any, int]]
"""By option: value and rank."""


def folder() -> Path:
    """Where contexts and tokens are kept (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "toolhub"


def contexts_file() -> Path:
    return folder() / "contexts.json"


def plain(given: Given) -> dict[str, Any] | None:
    """The options without a context, where none can apply; None: see `chosen_context.completed`."""
    if given["context_name"][0]:
        return None
    address, rank = given["address"]
    if (address is None or rank <= BY_FILE) and contexts_file().exists():
        return None
    return {**{name: value for name, (value, _) in given.items()}, "context_name": None}
