"""numpy, loaded by the first search: 9 MB and 90 ms of a start that most hubs need for nothing else."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["load", "np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        """Its names, each looked up when it is first asked for."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("numpy"), name)
            setattr(self, name, value)
            return value

    np = _Numpy()


async def load() -> None:
    """Load it in a thread, so that other calls go on meanwhile."""
    # sys.modules would not tell: it has a module already while that is being loaded.
    if "ndarray" not in vars(np):
        await asyncio.to_thread(getattr, np, "ndarray")
