"""What a program writes while it runs, which no writer of the hub counts: it is ended when it takes too much.

The free space of the disk is asked fifty times a second, which costs microseconds. The folder is walked once a second,
or in a tenth of the time where that takes long; and at once when the disk is short, with the program stopped meanwhile.
Only a folder that has grown since the start ends its program, so that programs that read go on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from toolhub_service.aio.threads import to_thread
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.storage import StorageKind, disk_full, refuse_over_bound
from toolhub_service.tools.disk_space.disk_room import DiskRoom
from toolhub_service.tools.disk_space.workspace_usage import BLOCK_BYTES, WorkspaceAccount, measure_folder

_ASK_S: Final = 0.02
_WALK_S: Final = 1.0
_PAUSES: Final = 10.0
"""How many times the duration of a walk passes until the next one."""
_NOTICED_BYTES: Final = 16 * BLOCK_BYTES
"""Growth below this is no reason to end a program."""


class Growth:
    """Watches what one program writes into one folder."""

    def __init__(
        self,
        measure: Callable[[], int],
        room: DiskRoom,
        *,
        began_bytes: int,
        max_bytes: int,
        refusal: Callable[[int], ToolFailure],
    ) -> None:
        """`measure` returns what the folder uses, in a thread; `began_bytes`: what it used before. `refusal` returns
        the failure for that many bytes, beyond `max_bytes`."""
        self._measure = measure
        self._room = room
        self._began_bytes = began_bytes
        self._max_bytes = max_bytes
        self._refusal = refusal
        self._failure: ToolFailure | None = None

    async def watch(self, signal_program: Callable[[signal.Signals], None]) -> None:
        """Return when the program must end. `signal_program` reaches it and all that it started."""
        loop = asyncio.get_running_loop()
        walk_at_s = loop.time() + _WALK_S
        while True:
            await asyncio.sleep(_ASK_S)
            is_short = self._room.is_short
            began_s = loop.time()
            if not is_short and began_s < walk_at_s:
                continue
            if is_short:
                signal_program(signal.SIGSTOP)
            await self._check_growth(is_short=is_short)
            if self._failure is not None:
                return
            if is_short:
                signal_program(signal.SIGCONT)
            ended_s = loop.time()
            walk_at_s = ended_s + max(_WALK_S, _PAUSES * (ended_s - began_s))

    async def find_failure(self) -> ToolFailure | None:
        """Return the failure of a program that has stored too much, once it has ended; None: it has not."""
        how = "was killed"
        if self._failure is None and self._room.is_short:
            # It ended by itself, because nothing was left.
            how = "has ended"
            await self._check_growth(is_short=True)
        if self._failure is None:
            return None
        message = f"The program {how}. {self._failure.error.message} What it did until then is not undone."
        return ToolFailure(msgspec.structs.replace(self._failure.error, message=message))

    async def _check_growth(self, *, is_short: bool) -> None:
        """Measure the folder once; it has failed when it has grown too much."""
        used_bytes = await to_thread(lambda _: self._measure())
        if used_bytes <= self._began_bytes + _NOTICED_BYTES:
            return
        if used_bytes > self._max_bytes:
            self._failure = self._refusal(used_bytes)
        elif is_short:
            self._failure = disk_full()


def growth_of(account: WorkspaceAccount) -> Growth:
    """Return the watch of a program that works in a workspace: the caller's bound holds."""
    use = account.use

    def refusal(used_bytes: int) -> ToolFailure:
        return refuse_over_bound(StorageKind.WORKSPACES, use.bound, use.used_bytes, used_bytes - use.used_bytes)

    return Growth(
        account.recount_bytes,
        account.room,
        began_bytes=use.used_bytes,
        max_bytes=use.bound.max_bytes,
        refusal=refusal,
    )


def growth_of_run(folders: Sequence[str], room: DiskRoom, *, max_bytes: int) -> Growth:
    """Return the watch of a program with folders of its own, which are removed afterwards."""

    def refusal(used_bytes: int) -> ToolFailure:
        message = (
            f"The program wrote {used_bytes:,} bytes, and all its files together may have {max_bytes:,}. Give it less "
            "to do, or use another tool."
        )
        return refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=max_bytes)

    def measure() -> int:
        return sum(map(measure_folder, folders))

    return Growth(measure, room, began_bytes=0, max_bytes=max_bytes, refusal=refusal)
