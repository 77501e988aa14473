"""The key that seals plan digests, page tokens and the states of MCP requests: one for all hubs that share a store.

A hub alone keeps it in its data folder, so that its workers and its next start have it. Hubs with a Redis or a
PostgreSQL keep it there: a replica that starts with an empty folder then accepts what the others have sealed. A
plan.key that lies in the folder of the first of them becomes the store's (decision 0077).
"""

from __future__ import annotations

import secrets
from pathlib import Path

from toolhub_service.app.config_files.editing import read_key, read_or_make_key
from toolhub_service.app.wiring.deps import Deps
from toolhub_service.app.wiring.stores import Stores

_NAME = "plan"
_SIZE_BYTES = 32


async def read_plan_key(deps: Deps, stores: Stores) -> bytes:
    """Return the key; the stores must be started.

    Raises OSError and SecretFileInvalid when the file can be neither read nor made, ToolFailure for the store.
    """
    path = deps.paths.plan_key
    if stores.shared_keys is None:
        return read_or_make_key(path)
    own = _read_own(path)
    key = await stores.shared_keys.agree(_NAME, own or secrets.token_bytes(_SIZE_BYTES))
    if own is not None and own != key:
        deps.observing.plan_key_differs(path)
    return key


def _read_own(path: Path) -> bytes | None:
    return read_key(path, "remove it: the shared store has the key") if path.exists() else None
