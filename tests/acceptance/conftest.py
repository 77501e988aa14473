"""Keeps these tests out of every other run: without `TOOLHUB_ACCEPTANCE` their modules are not even looked at.

`TOOLHUB_ACCEPTANCE=n8n` collects `test_n8n*.py`, `TOOLHUB_ACCEPTANCE=comfyui` collects `test_comfyui*.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

_CHOSEN = os.environ.get("TOOLHUB_ACCEPTANCE", "")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """None leaves the decision to pytest."""
    if not collection_path.name.startswith("test_"):
        return None
    return None if _CHOSEN and collection_path.name.startswith(f"test_{_CHOSEN}") else True
