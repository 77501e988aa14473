"""The table of docs/conformance.md: `python -m tests.conformance.report` prints it. The tests hold it to be true."""

from __future__ import annotations

from typing import Final

from tests.conformance.scenarios import NOT_RUN, VERSIONS, expected_failures

PAGE: Final = "docs/conformance.md"
_SHOWN: Final = ("2025-11-25", "2026-07-28")


def table() -> str:
    """One row a scenario, in Markdown."""
    names = {name for some in VERSIONS.values() for name in some}
    ordered = sorted(names, key=lambda name: (name.startswith("auth/"), name))
    rows = [f"| `{name}` | " + " | ".join(_cell(name, version) for version in _SHOWN) + " |" for name in ordered]
    rows += [f"| `{name}` | not run | not run |" for name in sorted(NOT_RUN)]
    return "\n".join(["| Scenario | 2025-11-25 | 2026-07-28 |", "|---|---|---|", *rows]) + "\n"


def _cell(name: str, version: str) -> str:
    runs_in = {version: names for version, names in VERSIONS.items() if name in names}
    if version not in runs_in and not (version == _SHOWN[0] and "2025-03-26" in runs_in):
        return "–"
    known = expected_failures().get(name, frozenset())
    if not known:
        return "passes"
    return "expected to fail" if "" in known else "passes but for " + ", ".join(f"`{check}`" for check in sorted(known))


if __name__ == "__main__":
    print(table(), end="")
