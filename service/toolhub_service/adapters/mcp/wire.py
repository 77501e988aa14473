"""Requests of a session as plain JSON: the SDK's framing, correlation, headers and cancellation, without its models.

The SDK's typed requests validate an answer twice with pydantic, as a whole: one tool that is not to the letter of the
specification loses its whole page of the list, one odd content block loses a result that stands otherwise, and a large
result is walked twice on the event loop. A hub takes what a server says as untrusted data anyway and judges each part
of it. So requests go to the session's dispatcher, the very one that `ClientSession.send_request` hands them to.

This is the one place that knows two private names of the SDK (`_stamp`, `_dispatcher`; mcp >= 2.3, < 3): tests notice
when a release renames them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from mcp_types import CLIENT_CAPABILITIES_META_KEY

from toolhub_service.adapters.mcp.lane import Elsewhere
from toolhub_service.adapters.mcp.pipe_lane import PipeLane

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.shared.dispatcher import CallOptions, ProgressFnT

_EXTENSIONS: Final = "extensions"


class ShortWay(Protocol):
    """To the server of a session, past its dispatcher."""

    @property
    def is_open(self) -> bool: ...

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        fields: Mapping[str, str],
        /,
        *,
        timeout_s: float | None = None,
        on_progress: ProgressFnT | None = None,
    ) -> dict[str, Any]:
        """Raises MCPError as `ask`, Elsewhere when nothing has run and the dispatcher is to be asked."""
        ...


async def ask(
    session: ClientSession,
    method: str,
    params: dict[str, Any],
    *,
    timeout_s: float | None = None,
    on_progress: ProgressFnT | None = None,
    headers: Mapping[str, str] | None = None,
    extension: str = "",
    lane: ShortWay | None = None,
) -> dict[str, Any]:
    """The `result` member of the answer: an object, of which nothing has been judged. `params` becomes the request's.

    When the caller is cancelled, or after `timeout_s`, the server is told to cancel. `extension` is declared with this
    request alone (2026-07-28). `lane`: a shorter way to the same server than the session's dispatcher.

    Raises:
        MCPError: an error response, -32001 after `timeout_s`, or a lost connection.
    """
    if isinstance(lane, PipeLane) and lane.is_open and not extension:
        return await lane.ask(method, _stamped(session, lane, params), {}, timeout_s=timeout_s, on_progress=on_progress)
    data: dict[str, Any] = {"method": method, "params": params}
    options: CallOptions = {}
    session._stamp(data, options)  # noqa: SLF001 - see above
    if headers:
        options.setdefault("headers", {}).update(headers)
    if extension:
        _declare(data["params"], extension)
    if lane is not None and lane.is_open:
        with suppress(Elsewhere):
            fields = options.get("headers", {})
            return await lane.ask(method, data["params"], fields, timeout_s=timeout_s, on_progress=on_progress)
    if timeout_s is not None:
        options["timeout"] = timeout_s
    if on_progress is not None:
        options["on_progress"] = on_progress
    return await session._dispatcher.send_raw_request(method, data["params"], options)  # noqa: SLF001 - see above


def _stamped(session: ClientSession, lane: PipeLane, params: dict[str, Any]) -> dict[str, Any]:
    """`params` as the session's stamp leaves them: the same `_meta` for all, and headers, which no pipe takes."""
    if lane.meta is None:
        data: dict[str, Any] = {"method": "", "params": {}}
        session._stamp(data, {})  # noqa: SLF001 - see above
        lane.meta = data["params"].get("_meta", {})
    return {**params, "_meta": {**lane.meta, **params.get("_meta", {})}} if lane.meta else params


def _declare(params: dict[str, Any], extension: str) -> None:
    """The stamp's objects are shared by all requests of the session: what changes is copied."""
    meta = params["_meta"]
    declared = meta.get(CLIENT_CAPABILITIES_META_KEY) or {}
    extensions = {**(declared.get(_EXTENSIONS) or {}), extension: {}}
    meta[CLIENT_CAPABILITIES_META_KEY] = {**declared, _EXTENSIONS: extensions}
