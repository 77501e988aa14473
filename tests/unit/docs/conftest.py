"""The generator of docs/ is a folder of scripts, not a package: its modules are imported by their bare names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / ".ci" / "docs"))
