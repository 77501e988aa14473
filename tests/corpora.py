"""Public attack and conformance data, read where it lies; tests say so in one line when it is missing.

The folder is `TEST_CORPORA`, or `../shared/corpora` beside the checkout.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TEST_CORPORA", Path(__file__).parents[2] / "shared" / "corpora"))


def load_text(name: str) -> str:
    """A corpus file such as `path/patt_nullbyte.txt.gz`, as text (undecodable bytes become surrogates)."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"corpus {name} is not here: set TEST_CORPORA to the folder that holds it")
    return gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")


def load_lines(name: str) -> list[str]:
    """The non-empty lines of a corpus file."""
    return [line for line in load_text(name).splitlines() if line]


def load_json(name: str) -> Any:
    """A JSON corpus file."""
    return json.loads(load_text(name))
