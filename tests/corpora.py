"""Public attack and conformance data, read where it lies; tests say so in one line when it is missing.

The folder is `TEST_CORPORA`, or `../shared/corpora` beside the checkout. Where each line costs a call, tests take a
sample: another one at each run, by a seed that the head of the run prints and `TEST_CORPORA_SEED` sets. `make corpora`
runs all of them whole (`TEST_CORPORA_WHOLE=1`).
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TEST_CORPORA", Path(__file__).parents[2] / "shared" / "corpora"))

SEED = os.environ.setdefault("TEST_CORPORA_SEED", str(random.randrange(1_000_000)))
"""In the environment, so that every worker of a run takes the same samples."""
WHOLE = os.environ.get("TEST_CORPORA_WHOLE", "") not in {"", "0"}


def report_header() -> str:
    """A line for the head of a run."""
    return "corpora: whole" if WHOLE else f"corpora: samples by TEST_CORPORA_SEED={SEED}"


def sample(lines: Iterable[str], count: int) -> list[str]:
    """At most `count` of the distinct lines that are not empty, by the seed; all of them for `make corpora`."""
    every = sorted({line for line in lines if line})
    return every if WHOLE or len(every) <= count else random.Random(SEED).sample(every, count)


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
