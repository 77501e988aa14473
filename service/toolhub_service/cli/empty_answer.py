"""Why a list of tools is empty: a source that nobody has configured is no source without tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import source_pb2
from toolhub_service.cli.connection import Connection
from toolhub_service.cli.output import counted


def why_empty(connection: Connection, sources: Sequence[str]) -> str:
    """What is to be said of the sources that were asked for; empty when the caller may not ask (operators may)."""
    if not sources:
        return ""
    try:
        request = pb.ListSourcesRequest()
        answer = connection.registry.ListSources(request, timeout=connection.timeout_s, metadata=connection.metadata)
    except grpc.RpcError:
        return ""  # the answer itself was given already
    return "; ".join(_told(sources, {status.source: status for status in answer.sources}))


def _told(sources: Sequence[str], known: dict[str, source_pb2.SourceStatus]) -> Iterator[str]:
    for name in sources:
        status = known.get(name)
        if status is None:
            yield f"there is no source {name!r}; there are {', '.join(known)}"
        elif status.tools:
            quarantined = f", {status.quarantined} of them quarantined" if status.quarantined else ""
            yield f"{name} has {counted(status.tools, 'tool')}{quarantined}, and none that fits and your policy allows"
        else:
            yield f"{name} has no tools"
