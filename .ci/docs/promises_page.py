"""docs/promises.md, from tests/promises.yaml and the marks of the tests."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tables import NOTICE, code, table

sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.promises import Promise, claims, promises

_HEAD = f"""# Promises

What this software promises, where each promise is made, and which tests keep it: over the wire, in a terminal, or with
a client in its own language. {NOTICE.format(source="`tests/promises.yaml` and the tests that are marked with it")}
A promise without a test, and a test that keeps a promise nobody made, fail `make test`.
"""


def page() -> str:
    return "\n".join([_HEAD, *_areas()]) + "\n"


def _areas() -> Iterator[str]:
    kept = defaultdict(list)
    for claim in claims():
        kept[claim.promise_id].append(code(claim.test))
    areas = defaultdict(list)
    for promise in promises().values():
        areas[promise.id.partition(".")[0]].append(promise)
    for area, made in areas.items():
        yield f"## {area}\n"
        rows = ((promise.sentence, _source(promise), ", ".join(kept[promise.id])) for promise in made)
        yield from table(("promise", "made in", "tests"), rows)
        yield ""


def _source(promise: Promise) -> str:
    """Pages of docs/ are linked, other sources are named."""
    if not promise.source.startswith("docs/"):
        return promise.source
    place = promise.source.removeprefix("docs/")
    return f"[{place.partition('#')[0]}]({place})"
