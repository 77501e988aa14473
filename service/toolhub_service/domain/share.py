"""How much of a common room one may hold, so that one alone does not use it up.

As long as one holds less than is still free, one may take one more (Choudhury and Hahne, "Dynamic Queue Length
Thresholds for Shared-Memory Packet Switches", 1998, with alpha = 1). Who comes first gets half, the next half of what
is left: it takes a dozen who take all they can to fill a room of thousands. As what they hold ends, their shares even
out, to one part in n + 1 each, for who has less may take sooner. Nobody needs to know who is there.
"""

from __future__ import annotations


def may_take(own: int, taken: int, most: int) -> bool:
    """Whether one who holds `own` may take more of a room of `most`, of which all together hold `taken`."""
    return own < most - taken
