"""Fixtures of everybody."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import quick_starts
from tests.corpora import report_header as pytest_report_header  # noqa: F401 - hook
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from tests.services import (  # noqa: F401 - fixtures
    chromium,
    display,
    empty_databases,
    hub_databases,
    hub_postgres_url,
    own_postgres,
    own_redis,
    postgres_url,
    redis_url,
    shared_postgres,
    shared_redis,
)
from tests.times import pytest_runtest_setup, pytest_runtest_teardown  # noqa: F401 - hooks

gc.disable()  # until the tests are collected
quick_starts.remember()
settings.register_profile("unhurried", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")  # no example may fail because the machine is slow


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: nobody who looks for some goes through them, now or later."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 50)  # as seldom as a hub that serves looks for garbage: else a fourteenth of all work
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _earlier_modules_are_no_garbage() -> None:
    """What they have loaded stays, a million objects after some thousand tests: each look for garbage, of which leak
    tests make hundreds, would go through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _environment_of_commands(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands go to the hub of their test, whatever hub their user has chosen; a busy machine completes slowly."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    os.environ["TOOLHUB_COMPLETION_TIMEOUT_S"] = "60"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    """A hub with the policy of a first run."""
    async with running_hub(tmp_path) as running:
        yield running


@pytest.fixture
async def open_hub(tmp_path: Path) -> AsyncIterator[RunningHub]:
    """A hub that allows whatever a test may want to do."""
    async with running_hub(tmp_path, policy=OPEN_POLICY) as running:
        yield running
