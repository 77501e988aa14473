"""Step 6 for tools of MCP servers: from a granted call to `tools/call` on its source's warm connection, and back.

Sources are added and removed while the hub runs. Jobs of tools that run as tasks of their server go through `job.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from toolhub_service.adapters.caller_auth import per_user_terms
from toolhub_service.adapters.callers import CallersOf, open_for_callers, others, run_masked
from toolhub_service.adapters.definitions import Overrides, SourceTerms
from toolhub_service.adapters.mcp.calling import ToolCaller
from toolhub_service.adapters.mcp.failures import Breakage
from toolhub_service.adapters.mcp.job import POLLS, TERMS, McpTasks
from toolhub_service.adapters.mcp.kind import (
    CONNECT_S,
    INSTALL_S,
    ClientCredentials,
    HttpTerms,
    McpSource,
    McpTerms,
    OAuthTerms,
    StdioTerms,
)
from toolhub_service.adapters.mcp.link import McpLink, McpServer
from toolhub_service.adapters.mcp.login.list_login import ListLogin
from toolhub_service.adapters.mcp.login.user_sessions import Holder, UserSessions
from toolhub_service.adapters.mcp.progress import Reporter
from toolhub_service.adapters.mcp.prompts import complete, get_prompt
from toolhub_service.adapters.mcp.resources import ResourceList, read_resource, subscribe_to_resource
from toolhub_service.adapters.mcp.skills import read_served_file
from toolhub_service.adapters.mcp.source import McpToolSource
from toolhub_service.adapters.mcp.transports.http import split_credentials
from toolhub_service.adapters.remote import RemoteExecutor
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.adapters.source_kind import OpenedSource, SourceAdapter, SourceDeps
from toolhub_service.adapters.upstream import hub_failed
from toolhub_service.credentials.secret import OAuthSettings, PerUserTerms
from toolhub_service.domain.call import GrantedCall, QuestionAsked
from toolhub_service.domain.credential import CredentialKind
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.job_ports import RunningJobs
from toolhub_service.domain.ports import Clock, EventSink, Randomness
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import Primitive, ToolKind, ToolSpec
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.schema.relaxing import repair_schema
from toolhub_service.sections.source_config import SourceValues, Value, describe_value

# MCP servers of sources.yaml. Only this module of the app imports the MCP SDK, which adds half a second to a start.


class McpOpener:
    """Implements `Opener`."""

    def __init__(self, deps: SourceDeps) -> None:
        calling = ToolCaller(
            deps.redactor.text,
            artifacts=deps.artifacts,
            trace=deps.trace_meta,
            keep_raw=deps.keep_raw,
        )
        self.adapter = McpAdapter(calling, deps.running, deps.clock, deps.randomness)
        self._deps = deps

    def endpoint(self, name: str, entry: McpSource) -> str:
        if entry.command:
            return McpTerms(
                name, StdioTerms(entry.command, tuple(describe_value(argument) for argument in entry.args))
            ).endpoint
        return McpTerms(name, HttpTerms(describe_value(entry.url))).endpoint

    def open(self, name: str, entry: McpSource) -> OpenedSource:
        values = SourceValues(self._deps.redactor)
        terms = self._terms(name, entry, values)
        per_user = _per_user(name, entry, terms, values)
        login = self._login(terms, _login(name, entry, terms, values), per_user, values)
        link = McpLink(terms, self._deps.randomness) if login is None else login.link
        server = McpServer(link, Overrides(entry.tools), login=login)
        callers = open_for_callers(self._deps.vault, per_user)
        if callers is not None:
            server.users = self.adapter.user_sessions(server, callers)
        if login is not None:
            self._deps.vault.follow(name, lambda: server.changed())  # noqa: PLW0108 - `changed` is set later
        source = McpToolSource(
            server,
            replace(
                SourceTerms.of(ToolKind.MCP, name, self.endpoint(name, entry), entry),
                follows_words=entry.pins == "schema",
                idle_timeout_s=entry.idle_timeout_s,
            ),
            repair_schema,
            self._deps.redactor.text,
            trust=Trust(entry.trust),
            mask=Mask(values.secrets),
        )
        server.follow_resources(partial(self._deps.resource_news.publish, name))
        self.adapter.put(server)
        return OpenedSource(source, source.restore_pinned, source.read_registration)

    def forget(self, name: str) -> None:
        self._deps.vault.close_source(name)
        self.adapter.remove(name)

    def _login(
        self, terms: McpTerms, own: PerUserTerms | None, callers: PerUserTerms | None, values: SourceValues
    ) -> ListLogin[McpLink] | None:
        if own is None:
            return None
        self._deps.vault.open_login(own)
        connect = partial(McpLink, terms, self._deps.randomness)
        return ListLogin(self._deps.vault, own, callers, connect, values.secrets)

    def _terms(self, name: str, entry: McpSource, values: SourceValues) -> McpTerms:
        where = _where(entry, values)
        usual_s = INSTALL_S if isinstance(where, StdioTerms) and where.may_install else CONNECT_S
        return McpTerms(
            name,
            where,
            protocol=entry.protocol,
            elicitation=entry.elicitation,
            relay=frozenset(entry.relay),
            connect_timeout_s=entry.connect_timeout_s or usual_s,
            max_message_bytes=entry.max_message_bytes,
        )


def _where(entry: McpSource, values: SourceValues) -> StdioTerms | HttpTerms:
    if entry.command:
        return StdioTerms(entry.command, values.all(entry.args), values.of(entry.env), entry.cwd, entry.pass_env)
    tls = entry.tls
    headers = values.of(entry.headers)
    return HttpTerms(values.url(entry.url), headers, _oauth(entry.oauth, values), tls, entry.origins)


def _per_user(name: str, entry: McpSource, terms: McpTerms, values: SourceValues) -> PerUserTerms | None:
    if not isinstance(terms.where, HttpTerms):
        return None
    found = per_user_terms(name, entry.auth, split_credentials(terms.where.url)[0], values, entry.tls.ca_file)
    # An origin that the source may connect to need not be named twice.
    return found and replace(found, oauth=replace(found.oauth, origins=(*found.oauth.origins, *entry.origins)))


def _login(name: str, entry: McpSource, terms: McpTerms, values: SourceValues) -> PerUserTerms | None:
    """Return the terms of an operator's login; None where the configuration holds credentials, or there is no URL."""
    per_user = entry.auth.per_user
    header = per_user.header.lower() if per_user is not None else ""
    if not isinstance(terms.where, HttpTerms) or terms.where.has_credentials(header):
        return None
    callers, own = _per_user(name, entry, terms, values), entry.login
    if own is not None:
        oauth = OAuthSettings(
            issuer=own.issuer,
            client_id=own.client_id,
            client_secret=values.one(own.client_secret),
            scopes=own.scopes,
            origins=entry.origins,
            redirect_uris=own.redirect_uris,
            ca_file=entry.tls.ca_file,
        )
    elif callers is not None and callers.kind is CredentialKind.OAUTH:
        oauth = callers.oauth
    else:
        oauth = OAuthSettings(origins=entry.origins, ca_file=entry.tls.ca_file)
    return PerUserTerms(
        source=name,
        kind=CredentialKind.OAUTH,
        is_required=False,
        server_url=split_credentials(terms.where.url)[0],
        oauth=oauth,
        is_source_login=True,
    )


def _oauth(credentials: ClientCredentials | None, values: SourceValues) -> OAuthTerms | None:
    if credentials is None:
        return None
    return OAuthTerms(
        credentials.client_id,
        values.one(credentials.client_secret),
        credentials.token_url,
        credentials.scopes,
        private_key=_key(credentials.private_key, values),
        signing_algorithm=credentials.signing_algorithm,
        audience=credentials.audience,
    )


def _key(value: Value, values: SourceValues) -> str:
    """Return the key. Raises ValueError when it is required and the reference resolves to an empty value."""
    key = values.one(value)
    if value and not key:
        raise ValueError("what `oauth.private_key` refers to is empty")
    return key


def terms_of_caller(terms: McpTerms, header: str) -> McpTerms:
    """Return the terms of a connection for one caller, without the source's own credentials."""
    where = terms.where
    assert isinstance(where, HttpTerms)
    headers = dict(others(tuple(where.headers.items()), header))
    return replace(terms, where=replace(where, url=split_credentials(where.url)[0], headers=headers, oauth=None))


def _is_unauthorized(failure: ToolFailure) -> bool:
    """Return whether the server refuses the credentials. Failures of a connection have no error kind for this case; the
    message contains the breakage."""
    return Breakage.UNAUTHORIZED.value in failure.error.message


class _Source(NamedTuple):
    server: McpServer
    tasks: McpTasks
    executor: RemoteExecutor
    resources: ResourceList


class McpAdapter(SourceAdapter[_Source]):
    """Runs the tools of all MCP sources of a hub."""

    kind = ToolKind.MCP

    def __init__(self, calling: ToolCaller, running: RunningJobs, clock: Clock, randomness: Randomness) -> None:
        super().__init__()
        self._caller = calling
        self._running = running
        self._clock = clock
        self._randomness = randomness

    def put(self, server: McpServer) -> None:
        """Add a source, or replace its server. Running calls finish on the server that they began on."""
        self._sources[server.link.terms.name] = self._make_source(server)

    def _make_source(self, server: McpServer) -> _Source:
        tasks = McpTasks(server, self._caller, Poller(self._randomness, POLLS), self._clock)
        executor = RemoteExecutor(tasks, self._running, self._clock, self._randomness, TERMS)
        return _Source(server, tasks, executor, ResourceList())

    def user_sessions(self, server: McpServer, callers: CallersOf) -> UserSessions[_Source]:
        """Return the sessions of a server whose callers have credentials of their own."""
        terms = terms_of_caller(server.link.terms, callers.terms.header)

        def make(holder: Holder) -> tuple[_Source, McpLink]:
            link = McpLink(terms, self._randomness, holder)
            own = McpServer(link, server.overrides, changed=server.changed)
            own.follow_resources(lambda _: None)  # nobody knows who else such a change may concern
            return self._make_source(own), link

        return UserSessions(callers, make)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        source = self._source(call)
        users = source.server.users
        if users is None:
            return await self._execute_for_all(source, call, sink)
        async with users.use_session(call) as used:
            if used is None:
                return await self._execute_for_all(source, call, sink)
            own, holder = used
            shared = source.server
            # The source's own connection reads once what the tools support; that applies to every user's connection.
            own.server.task_support, own.server.skills = shared.task_support, shared.skills
            own.server.has_task_extension = shared.has_task_extension
            try:
                return await run_masked(
                    holder.credential, lambda: holder.credential, sink, lambda shown: self._execute(own, call, shown)
                )
            except ToolFailure as failure:
                if _is_unauthorized(failure):
                    if source.server.login is not None and source.server.login.reads_as(call.call.principal):
                        source.server.changed()
                    raise users.callers.refusal(call) from failure
                raise

    async def _execute_for_all(self, source: _Source, call: GrantedCall, sink: EventSink) -> Outcome:
        """Run the call on the source's own connection, which carries the source's login where it has one."""
        login = source.server.login
        if login is None:
            return await self._execute(source, call, sink)
        holder, had_login = login.holder, login.holder.credential is not None
        try:
            # A reading takes a first login: most servers want none, and no call of theirs reads the store for it.
            if not had_login:
                return await self._execute(source, call, sink)
            await login.take()
            return await run_masked(
                holder.credential, lambda: holder.credential, sink, lambda shown: self._execute(source, call, shown)
            )
        except ToolFailure as failure:
            is_refused = _is_unauthorized(failure)
            if had_login and (is_refused or failure.error.kind is ErrorKind.PERMISSION_DENIED):
                source.server.changed()  # the login has ended, which its state must tell
            told = await login.explain_refusal(call, failure) if is_refused else failure
            if told is failure:
                raise
            raise told from failure

    async def _execute(self, source: _Source, call: GrantedCall, sink: EventSink) -> Outcome:
        job_id = call.call.job_id
        server, reporters = source.server, source.tasks.reporters
        if (skill := server.skills.get(call.spec.resource_id)) is not None:
            return await read_served_file(server, call, skill, self._caller.artifacts, self._caller.redact)
        if call.spec.primitive is not Primitive.TOOL:
            return await self._run_reading(source, call)
        reporter = Reporter(sink)
        try:
            if await self._is_task(source, call):
                reporters[job_id] = reporter
                return await source.executor.execute(call, sink)
            result, session = await self._caller.result(server, call, reporter)
            return await self._caller.outcome(server, session, call, result)
        except (ToolFailure, QuestionAsked, asyncio.CancelledError):
            raise
        except Exception as defect:
            raise hub_failed(call) from defect
        finally:
            if reporters.get(job_id) is reporter:
                del reporters[job_id]
            reporter.close()

    async def _run_reading(self, source: _Source, call: GrantedCall) -> Outcome:
        """Run a definition that is not a tool of the server: only these requests are sent for it, whatever its
        definition says."""
        server, caller = source.server, self._caller
        try:
            match call.spec.primitive:
                case Primitive.PROMPT:
                    return await get_prompt(server, call, caller)
                case Primitive.RESOURCE_LIST:
                    return await source.resources.outcome(server, call, caller.redact)
                case Primitive.RESOURCE_READ:
                    return await read_resource(server, call, caller)
                case Primitive.RESOURCE_SUBSCRIPTION:
                    return await subscribe_to_resource(server, call, caller)
                case _:
                    return await complete(server, call, caller)
        except (ToolFailure, QuestionAsked, asyncio.CancelledError):
            raise
        except Exception as defect:
            raise hub_failed(call) from defect

    async def _is_task(self, source: _Source, call: GrantedCall) -> bool:
        # The executor's mark also proves it, before the server's tools have been read again.
        runs_as_task = bool(call.call.job_id) and source.server.runs_as_task(call.spec)
        return runs_as_task or await source.executor.is_remote(call)

    def effects(self, call: GrantedCall) -> Sequence[str]:
        source, spec = self._source(call), call.spec
        if spec.resource_id in source.server.skills or spec.primitive is not Primitive.TOOL:
            return ()
        does = "reads through" if spec.annotations.read_only else "may change anything that it can access on"
        return (f"Calls the tool `{spec.resource_id}` of the MCP source `{spec.source}`, which {does} its server.",)

    def resumes(self, spec: ToolSpec) -> bool:
        source = self._sources.get(spec.source)
        return spec.cost.is_async or (source is not None and source.server.runs_as_task(spec))
