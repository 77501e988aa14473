"""Long work on the event loop in turns: whoever has held it for 5 ms lets others have it for as long."""

from __future__ import annotations

import asyncio
import time
from typing import Final

TURN_S: Final = 0.005


class Turns:
    """One piece of work, from its making on. Call `given` wherever the work can be left."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def given(self) -> float:
        """Give others a turn when it is time; how many seconds the work has had since it gave the last one."""
        took_s = time.perf_counter() - self._began_s
        if took_s > TURN_S:
            await asyncio.sleep(took_s)
            self._began_s = time.perf_counter()
        return took_s
