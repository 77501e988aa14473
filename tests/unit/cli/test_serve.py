from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolhub_service.cli.serve import SWITCH_INTERVAL_S

SERVE = """
import sys
import toolhub_service.app.serving

async def serve(*args, **kwargs):
    print(sys.getswitchinterval())

toolhub_service.app.serving.serve = serve
from toolhub_service.cli.root import main
main()
"""


def test_a_thread_of_a_hub_holds_the_interpreter_for_half_a_millisecond_at_a_time(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--data-dir", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(ended.stdout) == pytest.approx(SWITCH_INTERVAL_S)
