"""Options for the hub and the credential, and the precedence of their sources.

Every command imports this module, and the contexts only if there are any: this takes a tenth of their time.
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

# Ranks: a higher one takes precedence.
BY_DEFAULT: Final = 0
BY_FILE: Final = 1
BY_ENVIRONMENT: Final = 2
TYPED: Final = 3

Given = Mapping[str, tuple[Any, int]]
"""By option: value and rank."""


def folder() -> Path:
    """Return the folder of contexts and tokens (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "toolhub"


def contexts_file() -> Path:
    return folder() / "contexts.json"


def plain(given: Given) -> dict[str, Any] | None:
    """Return the options without a context when none can apply; None: see `chosen_context.completed`."""
    if given["context_name"][0]:
        return None
    address, rank = given["address"]
    if (address is None or rank <= BY_FILE) and contexts_file().exists():
        return None
    return {**{name: value for name, (value, _) in given.items()}, "context_name": None}
