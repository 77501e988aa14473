"""Turns LangChain's tracing off: LangSmith would send arguments and results to a third party.

Tracing is controlled by context, then by `langsmith.configure`, then by environment variables. The variables are set
before anything is imported, the configuration right after, so that a later change of the variables has no effect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

OFF: Final = dict.fromkeys(
    ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"), "false"
)
_OTHER_TRACERS: Final = ("LANGCHAIN_HANDLER", "LANGCHAIN_WANDB_TRACING", "LANGCHAIN_COMET_TRACING")
_OWN_PREFIX: Final = "TOOLHUB_"  # the hub's own settings, some of which are secrets


def disable_tracing() -> None:
    """Turn tracing off in this process permanently. Imports langsmith: half a second the first time."""
    for name in _OTHER_TRACERS:
        os.environ.pop(name, None)
    os.environ.update(OFF)
    import langsmith

    langsmith.configure(enabled=False)


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the hub's environment for a worker process, without the hub's settings and the switches of tracing."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_OWN_PREFIX) and name not in _OTHER_TRACERS
    }
    return kept | OFF
