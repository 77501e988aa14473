"""The generators of docs/ and of its site are folders of scripts, whose modules are imported by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[3] / ".ci" / name) for name in ("docs", "docs_site")]
