"""Recordings of real servers, read where they lie; tests say so in one line when they are missing.

The folder is `TEST_FIXTURES`, or `../shared/fixtures` beside the checkout.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TEST_FIXTURES", Path(__file__).parents[2] / "shared" / "fixtures"))


def are_here(*parts: str) -> bool:
    """Whether the recordings hold this: for parameters made at collection, where a skip would hide a module."""
    return FOLDER.joinpath(*parts).exists()


def path(*parts: str) -> Path:
    """A file or folder of the recordings, such as `path("n8n", "workflows")`."""
    found = FOLDER.joinpath(*parts)
    if not found.exists():
        pytest.skip(f"recording {'/'.join(parts)} is not here: set TEST_FIXTURES to the folder that holds it")
    return found


def load_json(*parts: str) -> Any:
    """A recording, such as `load_json("n8n", "transcript_calls.json")`."""
    return json.loads(path(*parts).read_text("utf-8"))
