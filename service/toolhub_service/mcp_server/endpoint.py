"""The protocol's requests, on the SDK's low-level server: one object for all clients, of any protocol version.

"The older protocol" in this folder is 2025-11-25 and what came before it, with sessions; "the newer protocol" begins
with 2026-07-28, in which each request is complete in itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CompleteRequestParams,
    EmptyResult,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ServerTasksCapability,
    ServerTasksRequestsCapability,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TasksCallCapability,
    TasksCancelCapability,
    TasksListCapability,
    TasksToolsCapability,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolhub_service.domain.call import Principal
from toolhub_service.domain.errors.failure import ErrorKind, HubFailure, ToolError, ToolFailure
from toolhub_service.guards.foreign_text import has_controls
from toolhub_service.mcp_server.caller import CALLER, PRINCIPAL, AccessRefused
from toolhub_service.mcp_server.calling import Calling, parse_approval_answer
from toolhub_service.mcp_server.changes import Changes
from toolhub_service.mcp_server.convert_calls import Context, error_to_dict
from toolhub_service.mcp_server.cursors import Cursors
from toolhub_service.mcp_server.engine import Engine
from toolhub_service.mcp_server.offer import TTL_MS, Offer
from toolhub_service.mcp_server.own_tools import CALL_TOOL, Asked, OwnTools, named_call
from toolhub_service.mcp_server.primitives.prompts import Prompts
from toolhub_service.mcp_server.primitives.resources import NOT_FOUND_ONCE, Resources
from toolhub_service.mcp_server.primitives.skills import EXTENSION as SKILLS
from toolhub_service.mcp_server.primitives.skills import SKILL_URI, Skills
from toolhub_service.mcp_server.primitives.skills import TEMPLATE as SKILL_TEMPLATE
from toolhub_service.mcp_server.primitives.source_primitives import Primitives, Requester
from toolhub_service.mcp_server.primitives.source_resources import SourceResources
from toolhub_service.mcp_server.primitives.subscriptions import Subscriptions
from toolhub_service.mcp_server.relay import InputRequired, given_in, is_waiting
from toolhub_service.mcp_server.tasks import (
    OLDER_VERSION,
    asks_for_task,
    asks_for_task_updates,
    check_declared,
)
from toolhub_service.telemetry.mcp import CANCELLED, TOOL_ERROR

NAME: Final = "tool-hub"
INSTRUCTIONS: Final = (
    "Tools of a tool-hub. An error says what to do differently; one of kind APPROVAL_REQUIRED waits for a person: send "
    "the same call again when it has been approved. Use job_start for what may take longer than a minute. Large "
    "results come as resource links."
)

_SESSION_HEADER: Final = "mcp-session-id"
_TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage")
# As over gRPC.
_NAME_MAX_CHARS: Final = 256
_STATE_REFUSED: Final = {"reason": "invalid_request_state"}
_STATE_ADVICE: Final = "Send the call again without it."
_AS_TASK: Final = {"execution": {"taskSupport": "optional"}}
_INITIALIZED: Final = "notifications/initialized"
# For a person to answer.
_STATE_S: Final = 3_600.0


def caller_over_http(context: Context) -> Principal:
    """Return the verified caller of the request: never serve without one."""
    assert context.request is not None
    principal = context.request.scope[PRINCIPAL]
    assert isinstance(principal, Principal)
    return principal


class Endpoint:
    """Call `start`, then serve `server` on any transport, then `close`."""

    def __init__(self, engine: Engine, principal_of: Callable[[Context], Principal] = caller_over_http) -> None:
        self._engine = engine
        self._principal_of = principal_of
        self._offer = Offer(engine)
        self._calling = Calling(engine, self._offer, principal_of)
        self._own_tools = OwnTools(engine, self._offer, self._calling)
        self._skills = Skills(engine, self._offer, self._calling)
        primitives = Primitives(engine, self._offer, self._calling)
        sources = SourceResources(engine, primitives)
        self._resources = Resources(engine, sources)
        self._prompts = Prompts(primitives, sources)
        self._changes = Changes(engine)
        self._pages = Cursors(engine.state_key)
        self._subscriptions = Subscriptions(primitives, sources, self._changes)
        self.server = _Server(
            NAME,
            version=engine.version,
            instructions=INSTRUCTIONS,
            get_tool_input_schema=self._input_schema,
            on_subscriptions_listen=self._listen,
        )
        add = self.server.add_request_handler
        add("tools/list", PaginatedRequestParams, self._list_tools)
        add("tools/call", CallToolRequestParams, self._call_tool)
        add("logging/setLevel", SetLevelRequestParams, self._set_level)
        add("resources/list", PaginatedRequestParams, self._list_resources)
        add("resources/templates/list", PaginatedRequestParams, self._list_templates)
        add("resources/read", ReadResourceRequestParams, self._read_resource)
        add("skills/list", PaginatedRequestParams, self._list_skills)
        add("skills/get", ReadResourceRequestParams, self._get_skill)
        self.server.extensions = {**self.server.extensions, SKILLS: {}}
        self._calling.tasks.add_to(self.server)
        add("prompts/list", PaginatedRequestParams, self._list_prompts)
        add("prompts/get", GetPromptRequestParams, self._get_prompt)
        add("resources/subscribe", SubscribeRequestParams, self._subscribe)
        add("resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe)
        add("completion/complete", CompleteRequestParams, self._complete)
        sealed = RequestStateSecurity(
            keys=[engine.state_key], ttl=_STATE_S, bind_principal=lambda ctx: principal_of(ctx).id
        )
        self.server.middleware = [
            self._around,
            self._around_tasks,
            RequestStateBoundary(sealed, default_audience=NAME),
        ]

    def start(self) -> None:
        self._changes.start()

    def close(self) -> None:
        """End streams that only listen."""
        self._calling.relay.close()
        self._changes.close()
        self._subscriptions.close()

    def session_ended(self, session_id: str) -> None:
        """Forget a session of the older protocol."""
        self._changes.forget(session_id)

    async def _around(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Set each request's trace context, and keep errors of defects off the wire."""
        try:
            principal = self._principal_of(ctx)
        except AccessRefused as refused:
            raise MCPError(INVALID_REQUEST, refused.message) from refused
        meta = dict(ctx.meta or {})
        sent = [(name, value) for name in _TRACE_HEADERS if isinstance(value := meta.get(name), str)]
        begun = self._engine.telemetry.begin(
            ctx.method,
            ctx.protocol_version,
            ctx.params or {},
            sent,
            session_id=session_of(ctx),
            request_id=ctx.request_id,
        )
        failed_as = CANCELLED
        try:
            if ctx.method == _INITIALIZED and (ctx.request is None or session_of(ctx)):
                self._changes.add_session(session_of(ctx), ctx.session)
            result = await call_next(ctx)
            failed_as = TOOL_ERROR if isinstance(result, dict) and result.get("isError") else ""
            return result
        except MCPError as refused:
            failed_as = str(refused.code)
            if refused.data == _STATE_REFUSED:
                message = f"{refused.message}. {_STATE_ADVICE}"
                raise MCPError(refused.code, message, refused.data) from refused
            raise
        except ValueError:  # from pydantic's validation, which the SDK answers
            failed_as = str(INVALID_PARAMS)
            raise
        except (HubFailure, ToolFailure) as refused:
            failed_as = str(INTERNAL_ERROR)
            message = refused.error.message if isinstance(refused, ToolFailure) else str(refused)
            raise MCPError(INTERNAL_ERROR, self._engine.redact(message)) from refused
        except Exception as defect:
            failed_as = str(INTERNAL_ERROR)
            self._engine.crashed(f"mcp/{ctx.method}", defect)
            raise MCPError(INTERNAL_ERROR, "The hub failed. The operator finds the cause in its log.") from defect
        finally:
            begun.end(principal, failed_as)

    async def _around_tasks(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer task requests for which the SDK has no handler: it passes a middleware's answer on unchanged."""
        if asks_for_task_updates(ctx):
            check_declared(ctx)
        if not asks_for_task(ctx):
            return await call_next(ctx)
        params = CallToolRequestParams.model_validate(ctx.params, by_name=False)
        principal = self._principal_of(ctx)
        name = params.name
        arguments = params.arguments or {}
        if name == CALL_TOOL:
            name, arguments = named_call(arguments)
        elif not self._can_be_task(name):
            raise MCPError(METHOD_NOT_FOUND, f"{name} answers at once and cannot be a task.", name)
        call = self._calling.call(ctx, principal, session_of(ctx), name[:_NAME_MAX_CHARS], arguments)
        return self._calling.tasks.job_to_created(ctx, await self._calling.submit(call))

    def _input_schema(self, name: str) -> Any:
        """Return the schema of a tool that the caller may know of: a refusal for missing headers reveals that it
        exists."""
        spec = self._engine.catalog.get(self._offer.tool_of(name))
        caller = CALLER.get()
        is_hidden = spec is None or (caller is not None and not self._engine.policy.could_allow(caller, spec))
        return None if spec is None or is_hidden else spec.input_schema

    async def _list_tools(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        principal = self._principal_of(context)
        cursor = self._pages.open(params.cursor, principal, "tools")
        mode = self._offer.mode_for(principal)
        tools = [] if cursor else self._own_tools.definitions(mode, principal)
        listed: dict[str, Any] = {"ttlMs": TTL_MS, "cacheScope": "private", "resultType": "complete"}
        if mode == "full":
            page = self._offer.page(principal, cursor)
            tools = [*tools, *page.tools]
            if page.next_cursor is not None:
                listed |= self._pages.seal({"nextCursor": page.next_cursor}, principal, "tools")
        if context.protocol_version == OLDER_VERSION:
            tools = [{**tool, **_AS_TASK} if self._can_be_task(tool["name"]) else tool for tool in tools]
        return listed | {"tools": tools}

    def _can_be_task(self, name: str) -> bool:
        return name == CALL_TOOL or self._own_tools.get(name) is None

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> dict[str, Any]:
        try:
            return await self._call_by_name(context, params)
        except InputRequired as asks:
            return asks.result

    async def _call_by_name(self, context: Context, params: CallToolRequestParams) -> dict[str, Any]:
        """Make the call. Raises InputRequired."""
        principal = self._principal_of(context)
        session_id = session_of(context)
        given = given_in(params)
        if is_waiting(params.request_state):
            call, answer = await self._calling.relay.resume(principal, params.request_state or "", given)
            return await self._calling.visible(call, answer)
        came_back = parse_approval_answer(params.request_state, params.input_responses)
        if len(params.name) > _NAME_MAX_CHARS or has_controls(params.name):
            message = "No tool has a name as long as this, or with control characters. Take one from the list of tools."
            return error_to_dict(ToolError(kind=ErrorKind.TOOL_NOT_FOUND, message=message))
        own = self._own_tools.get(params.name)
        client = None
        if own is not None or self._calling.may_ask_client(params.name):
            level = str(dict(context.meta or {}).get(LOG_LEVEL_META_KEY, ""))
            client = self._calling.relay.client(context, session_id, level, {} if came_back else given)
        if own is not None:
            asked = Asked(context, principal, session_id, came_back, client)
            return await self._own_tools.run(own, params.arguments or {}, asked)
        call = self._calling.call(context, principal, session_id, params.name, params.arguments or {}, client=client)
        return await self._calling.make(context, call, came_back)

    async def _set_level(self, context: Context, params: SetLevelRequestParams) -> EmptyResult:
        self._calling.relay.set_level(session_of(context), params.level)
        return EmptyResult()

    async def _list_resources(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        requester = self._requester(context)
        cursor = self._pages.open(params.cursor, requester.principal, "resources")
        page = await self._resources.page(requester, cursor)
        page = self._pages.seal(page, requester.principal, "resources")
        if cursor:
            return page
        return page | {"resources": [*self._skills.resources(requester.principal), *page["resources"]]}

    async def _list_templates(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        requester = self._requester(context)
        self._pages.open(params.cursor, requester.principal, "templates")  # one page: every cursor is refused
        page = await self._resources.templates(requester)
        return page | {"resourceTemplates": [*page["resourceTemplates"], SKILL_TEMPLATE]}

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> dict[str, Any]:
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        requester = self._requester(context)
        uri = str(params.uri)

        async def of_uri(uri: str) -> dict[str, Any]:
            return await self._resources.read(requester, uri, is_modern=is_modern)

        if not uri.startswith(SKILL_URI):
            return await of_uri(uri)
        not_found = INVALID_PARAMS if is_modern else NOT_FOUND_ONCE
        return await self._skills.read(context, requester.principal, requester.session_id, uri, of_uri, not_found)

    async def _list_skills(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        principal = self._principal_of(context)
        page = self._skills.page(principal, self._pages.open(params.cursor, principal, "skills"))
        return self._pages.seal(page, principal, "skills")

    async def _get_skill(self, context: Context, params: ReadResourceRequestParams) -> dict[str, Any]:
        return self._skills.get(self._principal_of(context), str(params.uri))

    async def _list_prompts(self, context: Context, params: PaginatedRequestParams) -> dict[str, Any]:
        principal = self._principal_of(context)
        page = self._prompts.page(principal, self._pages.open(params.cursor, principal, "prompts"))
        return self._pages.seal(page, principal, "prompts")

    async def _get_prompt(self, context: Context, params: GetPromptRequestParams) -> dict[str, Any]:
        requester = self._requester(context)
        given = given_in(params)
        relay = self._calling.relay
        try:
            if is_waiting(params.request_state):
                _, answer = await relay.resume(requester.principal, params.request_state or "", given)
                requester = requester._replace(resumed=answer)
            else:
                requester = requester._replace(client=relay.client(context, requester.session_id, "", given))
            return await self._prompts.get(requester, params.name, params.arguments or {})
        except InputRequired as asks:
            return asks.result

    async def _subscribe(self, context: Context, params: SubscribeRequestParams) -> dict[str, Any]:
        await self._subscriptions.subscribe(self._requester(context), params.uri)
        return {}

    async def _unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> dict[str, Any]:
        self._subscriptions.unsubscribe(self._requester(context), params.uri)
        return {}

    async def _listen(self, context: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        return await self._subscriptions.listen(self._requester(context), params)

    async def _complete(self, context: Context, params: CompleteRequestParams) -> dict[str, Any]:
        return await self._prompts.complete(self._requester(context), params)

    def _requester(self, context: Context) -> Requester:
        return Requester(context, self._principal_of(context), session_of(context))


class _Server(Server[Any]):
    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Declare notifications of changes and tasks for clients of the older protocol, too."""
        every = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        options_for = notification_options or every
        options = super().create_initialization_options(options_for, experimental_capabilities, extensions)
        tasks = ServerTasksCapability(
            list=TasksListCapability(),
            cancel=TasksCancelCapability(),
            requests=ServerTasksRequestsCapability(tools=TasksToolsCapability(call=TasksCallCapability())),
        )
        return options.model_copy(update={"capabilities": options.capabilities.model_copy(update={"tasks": tasks})})


def session_of(context: Context) -> str:
    """Return the session of the older protocol; empty in the newer one, where admission removes the header."""
    return "" if context.request is None else str(context.request.headers.get(_SESSION_HEADER, ""))
