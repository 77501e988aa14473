"""How much of a shared resource one may hold, so that nobody uses it up alone.

While one holds less than is still free, one may take one more (Choudhury and Hahne, "Dynamic Queue Length Thresholds
for Shared-Memory Packet Switches", 1998, with alpha = 1). The first gets half, the next half of the rest: it takes a
dozen who take all they can to fill a resource of thousands. As holdings end, the shares even out, to one part in n + 1
each, because one who has less may take sooner. Nobody needs to know who the others are.
"""

from __future__ import annotations


def may_take(own: int, taken: int, most: int) -> bool:
    """Return whether one who holds `own` may take more of a resource of `most`, of which all together hold `taken`."""
    return own < most - taken
