"""The protocol's requests, on the SDK's low-level server: one object for all clients, of either era."""

from __future__ import annotations

from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolRequestParams, PaginatedRequestParams

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors import HubFailure, ToolFailure
from toolhub_service.domain.result import ToolResult
from toolhub_service.mcp_server.calls import (
    Context,
    answer_of,
    call_of,
    context_of,
    failed,
    invoke,
    purpose_of,
    word_of,
)
from toolhub_service.mcp_server.doors import PRINCIPAL
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import TTL_MS, Offer
from toolhub_service.runtime.route import not_found

INSTRUCTIONS: Final = (
    "Tools of a tool-hub. An error says what to do differently; one of kind APPROVAL_REQUIRED waits for a person. "
    "Large results come as resource links."
)

_SESSION_HEADER: Final = "mcp-session-id"
_TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage")


class Face:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.offer = Offer(engine)
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(self._bus)
        self.server: Server[Any] = Server(
            "tool-hub",
            version=engine.version,
            instructions=INSTRUCTIONS,
            get_tool_input_schema=self._input_schema,
            on_subscriptions_listen=self._listening,
        )
        self.server.add_request_handler("tools/list", PaginatedRequestParams, self._list_tools)
        self.server.add_request_handler("tools/call", CallToolRequestParams, self._call_tool)
        self.server.middleware = [self._around]

    def close(self) -> None:
        """End what only listens."""
        self._listening.close()

    async def _around(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Each request's place in its trace, and no defect's text on the wire."""
        principal = principal_of(ctx)
        meta = dict(ctx.meta or {})
        sent = [(name, value) for name in _TRACE_HEADERS if isinstance(value := meta.get(name), str)]
        trace = self._engine.tracing.rpc(f"mcp/{ctx.method}", sent)
        code = "OK"
        try:
            return await call_next(ctx)
        except MCPError:
            code = "INVALID_ARGUMENT"
            raise
        except (HubFailure, ToolFailure) as refused:
            code = "FAILED_PRECONDITION"
            message = refused.error.message if isinstance(refused, ToolFailure) else str(refused)
            raise MCPError(INTERNAL_ERROR, self._engine.redact(message)) from refused
        except ValueError:  # of pydantic's validation, which the SDK answers
            code = "INVALID_ARGUMENT"
            raise
        except Exception as defect:
            code = "INTERNAL"
            self._engine.crashed(f"mcp/{ctx.method}", defect)
            raise MCPError(INTERNAL_ERROR, "The hub failed. The operator finds the cause in its log.") from defect
        finally:
            trace.end(code, "", principal.id)

    def _input_schema(self, name: str) -> Any:
        spec = self._engine.catalog.get(self.offer.tool_of(name))
        return None if spec is None else spec.input_schema

    async def _list_tools(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        page = self.offer.page(principal_of(context), params.cursor or "")
        listed: dict[str, Any] = {
            "tools": page.tools,
            "ttlMs": TTL_MS,
            "cacheScope": "private",
            "resultType": "complete",
        }
        if page.next_cursor is not None:
            listed["nextCursor"] = page.next_cursor
        return listed

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> dict[str, Any]:
        principal = principal_of(context)
        tool = self.offer.tool_of(params.name)
        call = call_of(
            tool,
            params.arguments or {},
            principal,
            context_of(context, principal, session_of(context)),
            call_id=self._engine.call_ids.next(),
            purpose=purpose_of(context),
            approval_id=word_of(context, "approval_id"),
            idempotency_key=word_of(context, "idempotency_key"),
        )
        answer = await invoke(self._engine.invoker, call, context)
        if isinstance(answer, ToolResult) and answer.error is not None and not self._is_known(principal, tool):
            # Judged and recorded as any other call; what is hidden is answered as what does not exist.
            return failed(not_found(call, self._engine.catalog, self._engine.policy).error)
        return answer_of(answer)

    def _is_known(self, principal: Principal, tool: str) -> bool:
        spec = self._engine.catalog.get(tool)
        return spec is not None and self._engine.policy.could_allow(principal.id, spec)


def principal_of(context: Context) -> Principal:
    """The verified caller of the request. Raises KeyError outside of one: never answer without."""
    assert context.request is not None  # the transport is HTTP
    principal = context.request.scope[PRINCIPAL]
    assert isinstance(principal, Principal)
    return principal


def session_of(context: Context) -> str:
    """The session of the older era; empty in the newer one."""
    return "" if context.request is None else str(context.request.headers.get(_SESSION_HEADER, ""))
