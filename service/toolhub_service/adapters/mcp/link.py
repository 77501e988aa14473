"""A warm connection to one MCP server, made again whenever it is lost.

One owner task a server starts one connection after another; the task of a connection alone enters and leaves the SDK's
`Client` (`connection.py`), so that what the SDK does to that task when a server dies (a stray cancellation, an
ExceptionGroup; python-sdk #3560, #3522) ends there: the owner itself is only ever cancelled by `close`.

How to call through a session. Use the session's client at the level of `send_request`:

    await session.client.session.send_request(
        CallToolRequest(params=CallToolRequestParams(name=…, arguments=…, input_responses=…, request_state=…, _meta=…)),
        _RESULT,                       # TypeAdapter(CallToolResult | InputRequiredResult), made once a module
        request_read_timeout_seconds=left_s,
        progress_callback=…,
    )

It stamps era, headers and trace context, and gives an InputRequiredResult as it is. `Client.call_tool` answers
questions by itself and sends the call again; `ClientSession.call_tool` validates outputs, which costs a hidden
tools/list for a tool that has not been listed on this connection and a RuntimeError where the schema does not fit; the
hub validates outputs itself. Listing: `client.list_tools(cursor=…)` (nothing is cached); in the modern era it also
teaches the session which arguments are mirrored into headers, so list once for each `session.generation` before the
first call, else a server may answer -32020 (HEADER_MISMATCH; it has not run the call then: list, and send it once more).

What a call may raise: `MCPError` (`breakage.breakage_of(error)` says what broke on the way and whether the request can
have been taken; -32001 is its own timeout; -32000 a lost connection), `pydantic.ValidationError` (the answer is not
MCP), TimeoutError. When the server does not know the session any more the link notices that by itself (HTTP 404); for
other signs of it call `lost(session, why)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolhub_service.adapters.mcp.terms import McpTerms
from toolhub_service.domain.ports import Randomness

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client.extension import ClientExtension
    from mcp.client.session import ElicitationFnT


@dataclass(frozen=True, slots=True, eq=False)
class McpSession:
    """A connection that stands. Valid until it is lost; calls on it fail then, at once."""

    client: Client
    is_modern: bool
    """The era of 2026-07-28: no sessions, questions by InputRequiredResult."""
    protocol: str
    """The version that was agreed on."""
    server: str
    """`name version` as the server calls itself, untrusted, at most 100 characters; empty when it does not."""
    generation: int
    """Counts the link's connections, from 1."""


class McpLink:
    """Keeps one server connected. All methods belong to the loop that `start` ran on."""

    def __init__(
        self,
        terms: McpTerms,
        randomness: Randomness,
        *,
        on_elicit: ElicitationFnT | None = None,
        extensions: Sequence[ClientExtension] = (),
    ) -> None:
        """`on_elicit` answers the server's questions instead of what `terms.elicitation` says; not with `decline`."""
        raise NotImplementedError

    @property
    def is_connected(self) -> bool:
        raise NotImplementedError

    @property
    def connects(self) -> int:
        """How many connections have stood."""
        raise NotImplementedError

    def listen(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when the server says that its tools changed, and whenever it may have: after a
        connection was made again, or made late."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to connect; returns at once."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave the server, end its processes; bounded (about 5 s). Calls in flight fail."""
        raise NotImplementedError

    async def session(self, deadline_s: float) -> McpSession:
        """The connection that stands, or the one that the attempt under way gives before `deadline_s` (loop clock).

        Raises:
            ToolFailure: TOOL_UNAVAILABLE, with `retry_after_s` and a reason fit for models and operators.
        """
        raise NotImplementedError

    def lost(self, session: McpSession, why: str) -> None:
        """This connection is of no use any more: leave it and make another. `why` without text of exceptions."""
        raise NotImplementedError

    def diagnostics(self) -> tuple[str, ...]:
        """Lines for `doctor`: state, what went wrong last, the tail of standard error; secrets hidden."""
        raise NotImplementedError
