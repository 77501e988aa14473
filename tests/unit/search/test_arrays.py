"""What only searches and rare messages need is not paid for by every start."""

from __future__ import annotations

import subprocess
import sys


def test_start_loads_nothing_that_only_searches_and_rare_calls_need() -> None:
    program = (
        "import toolhub_service.app.hub, sys; "
        "print([name for name in ('numpy', 'protovalidate', 'jsonpath_rfc9535') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_first_search_loads_numpy() -> None:
    program = """
import asyncio, sys
from toolhub_service.search import arrays
before = "numpy" in sys.modules
asyncio.run(arrays.load())
print(before, "numpy" in sys.modules, arrays.np.zeros(3, arrays.np.float32).tolist())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True [0.0, 0.0, 0.0]"
