"""What a running hub tells the doctor: how its sources fare, and what their processes last said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from toolhub.v1 import registry_service_pb2 as pb
from toolhub.v1 import source_pb2
from toolhub_service.cli.connection import HubRefused, HubUnreachable, connected_by
from toolhub_service.cli.output import counted, revealed

if TYPE_CHECKING:
    from toolhub_service.app.findings import Finding

_LINES_MAX = 5
_STDERR = "stderr: "
"""Begins a line of diagnostics that the source's process wrote."""


def live_findings(options: Mapping[str, Any]) -> list[Finding]:
    """One for each source; a hub that cannot be asked is a finding, too."""
    from toolhub_service.app.findings import fail

    try:
        with connected_by(options) as connection:
            answer = connection.registry.ListSources(
                pb.ListSourcesRequest(), timeout=connection.timeout_s, metadata=connection.metadata
            )
    except (HubRefused, HubUnreachable) as unasked:
        advice = "Start the hub, or name its --address and an operator's --api-key."
        return [fail("running hub", unasked.message, advice)]
    return [finding for status in answer.sources for finding in _of(status)]


def _of(status: source_pb2.SourceStatus) -> Iterator[Finding]:
    from toolhub_service.app.findings import ok, warn

    name = f"source {status.source}"
    quarantined = f", {status.quarantined} of them quarantined" if status.quarantined else ""
    if status.state == source_pb2.SOURCE_STATE_READY:
        tools = f"{counted(status.tools, 'tool')}{quarantined}"
        if status.breaker == source_pb2.BREAKER_STATE_OPEN:
            advice = f"Calls are refused for a while; `toolhub sources show {status.source}` tells of its connection."
            yield warn(
                name, f"{tools}; it can be read, but calls of them failed repeatedly", advice, f"{status.source}/*"
            )
        else:
            yield ok(name, tools)
        return
    state = source_pb2.SourceState.Name(status.state).removeprefix("SOURCE_STATE_")
    told = f"{state}: {revealed(status.message)}" if status.message else state
    wrote = [line.removeprefix(_STDERR) for line in status.diagnostics if line.startswith(_STDERR)]
    said = "; ".join(revealed(line) for line in wrote[-_LINES_MAX:])
    yield warn(name, told, f"It last said: {said}" if said else f"`toolhub sources show {status.source}` tells more.")
