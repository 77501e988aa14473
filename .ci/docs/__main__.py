"""Writes what is made from the code, pages of docs/ and the clients' tables of errors; --check fails on differences.

python .ci/docs [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import pages

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    found = list(pages.stale(ROOT))
    if sys.argv[1:] == ["--check"]:
        print(
            "\n".join(f"{name} is not what the code says: run make docs" for name, _ in found) or "docs/ is up to date"
        )
        return 1 if found else 0
    pages.write(ROOT, dict(found))
    print("\n".join(f"wrote {name}" for name, _ in found) or "docs/ is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
