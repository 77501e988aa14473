"""Keeps these tests out of every other run: without `TEST_ACCEPTANCE` their modules are not even looked at.

`TEST_ACCEPTANCE=n8n` collects `test_n8n*.py`, `TEST_ACCEPTANCE=comfyui` collects `test_comfyui*.py`,
`TEST_ACCEPTANCE=clients` collects `test_clients*.py`, `TEST_ACCEPTANCE=skills` collects `test_skills.py`, and
`TEST_ACCEPTANCE=helm` collects `test_helm.py`, `TEST_ACCEPTANCE=packages` collects `test_packages.py`, and
`TEST_ACCEPTANCE=s3` collects `test_s3.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from tests.acceptance.real_n8n import RealN8n

_CHOSEN = os.environ.get("TEST_ACCEPTANCE", "")
_WITHIN_S = 600
"""Of a test, which may be the one that n8n is started for."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """None leaves the decision to pytest."""
    if not collection_path.name.startswith("test_"):
        return None
    return None if _CHOSEN and collection_path.name.startswith(f"test_{_CHOSEN}") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not _CHOSEN:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_WITHIN_S))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def n8n(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealN8n]:
    """One for all tests."""
    from tests.acceptance.real_n8n import real_n8n

    async with real_n8n(tmp_path_factory.mktemp("n8n")) as running:
        yield running
