"""What this machine lacks for a test: a skip with how to get it, or a failure where all is required, as in CI.

Public data (`tests/corpora.py`, `tests/fixtures.py`) and what a kernel can or cannot do are the only skips in CI.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import NoReturn

import pytest

REQUIRED = "TOOLHUB_REQUIRE_SERVICES"


def required() -> bool:
    return os.environ.get(REQUIRED, "") not in {"", "0"}


def give_up(reason: str) -> NoReturn:
    """Skip the test, or the module that is being imported; fail where everything is required."""
    if required():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def need_extra(module: str, extra: str) -> None:
    """For tests, and for modules of tests whose every test needs the extra."""
    if find_spec(module) is None:
        give_up(f"{module} is not installed: toolhub extras install {extra}")


def need_program(name: str, how: str = "make setup") -> str:
    """Where the program is; `how` says what brings it."""
    found = shutil.which(name)
    if found is None:
        give_up(f"{name} is not on the path: {how}")
    return found
