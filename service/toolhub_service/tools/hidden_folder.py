"""Starts a program that sees all of the machine but one folder: the hub's own.

By bubblewrap where it works: the folder is covered by an empty one, all else stays as it is. Else by Landlock, which
can only allow: all that stands beside the folder and beside those above it when the program starts, so that it can make
no new entries in the folders above. Both hold for whatever the program starts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from toolhub_service.tools.child import Program
from toolhub_service.tools.kernel_walls import READ_FOLDERS, landlock_abi, restrict_files
from toolhub_service.tools.process import run_process

_PROBE_S = 5.0
# Root's bubblewrap leaves capabilities: with these the cover could be taken off, or the hub be read around it.
_DROPPED = ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_MODULE", "CAP_MKNOD")


class CannotHide(OSError):
    """Neither bubblewrap nor Landlock works here."""


@dataclass(slots=True)
class HiddenFolder:
    """What is kept from programs."""

    folder: str
    """Absolute, without links."""
    bubblewrap: str
    """Its absolute path; empty to do without it."""
    landlock: bool = True
    _works: bool | None = None

    async def hidden_from(self, program: Program) -> Program:
        """The program that does not see the folder. Raises CannotHide."""
        if await self._bubblewrap_works():
            return replace(program, argv=self._covered(program.argv))
        if self.landlock and landlock_abi():
            return replace(program, confine=partial(_restrict, self.folder))
        raise CannotHide

    def _covered(self, argv: Sequence[str]) -> tuple[str, ...]:
        dropped = (word for name in _DROPPED for word in ("--cap-drop", name))
        cover = ("--dev-bind", "/", "/", "--tmpfs", self.folder, "--remount-ro", self.folder)
        return (self.bubblewrap, "--die-with-parent", *dropped, *cover, "--", *argv)

    async def _bubblewrap_works(self) -> bool:
        if self._works is None:
            self._works = False
            if self.bubblewrap:
                with suppress(OSError):
                    finished = await run_process(
                        Program(self._covered(("/bin/true",)), {}, "/"),
                        deadline_s=asyncio.get_running_loop().time() + _PROBE_S,
                        keep_bytes=0,
                        on_output=lambda _lines, _stream: None,
                    )
                    self._works = finished.exit_code == 0
        return self._works


def _restrict(folder: str) -> None:
    """Allow this thread all but the folder, and the names of what stands in the folders above."""
    beside, above = [], Path(folder)
    while above != above.parent:
        with os.scandir(above.parent) as entries:
            beside += [entry.path for entry in entries if entry.name != above.name and not entry.is_symlink()]
        above = above.parent
    restrict_files([("/", READ_FOLDERS)], beside, tcp=True)
