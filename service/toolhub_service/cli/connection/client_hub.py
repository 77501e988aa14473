"""The Python client (`toolhub_client`) on the hub and the credential of a command, such as for transfers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolhub_service.cli.connection.client import Connection

if TYPE_CHECKING:
    from toolhub_client import SyncHub

# How long it waits for a hub.
_PATIENCE_S = 5.0


@contextmanager
def open_client(connection: Connection, *, task_id: str = "") -> Iterator[SyncHub]:
    """Open another connection to the same hub. Its errors are grpc.RpcError, which `connect` explains.

    Imported here, because other commands must not pay for it.
    """
    from toolhub_client import Context, PlaintextCredentialWarning, Target, connect_sync

    # Where a key goes is the user's decision here, made with the address.
    warnings.filterwarnings("ignore", category=PlaintextCredentialWarning)
    hub = connection.hub
    target = Target(hub.address, connection.credential or "", hub.credentials())
    context = Context(task_id=task_id)
    with connect_sync(target, context=context, retry_s=_PATIENCE_S, options=hub.name_option()) as client:
        yield client
