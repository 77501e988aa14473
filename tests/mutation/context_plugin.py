"""A pytest plugin: coverage notes of each line which tests run it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import coverage
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    # Around the fixtures too: what they run for the first test that wants them is counted as that test's.
    measured = coverage.Coverage.current()
    if measured is None:
        return (yield)
    measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measured.switch_context("")
