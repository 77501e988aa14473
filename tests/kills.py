"""How many kills the tests take that look for what kills leave behind: `make chaos` has fifty of each, CI fewer.

What one kill leaves is found by any number of them beyond the few that the bounds on descriptors and tasks allow.
"""

from __future__ import annotations

import os

KILLS = int(os.environ.get("TOOLHUB_TEST_KILLS", "10"))
