"""Loads numpy at the first search: it costs 9 MB and 90 ms of a start, which most hubs do not need for anything
else."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["load", "np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        """Looks up numpy's names when they are first used."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("numpy"), name)
            setattr(self, name, value)
            return value

    np = _Numpy()


async def load() -> None:
    """Load numpy in a thread, so that other calls go on meanwhile."""
    # Not decided by sys.modules, which contains a module already while it is still being loaded.
    if "ndarray" not in vars(np):
        await asyncio.to_thread(getattr, np, "ndarray")
