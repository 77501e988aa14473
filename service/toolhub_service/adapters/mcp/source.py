"""The tools of one MCP server: all pages of its list, each tool independently, within limits.

A page that fails after others makes the reading incomplete, and a tool that cannot be read is left out alone; both are
reported as problems. The reading fails only when no list can be read at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from mcp import MCPError
from mcp_types import METHOD_NOT_FOUND

from toolhub_service.adapters.definitions import NO_MASK, RepairSchema, SourceTerms, limit_problems
from toolhub_service.adapters.mcp import failures
from toolhub_service.adapters.mcp.definitions import FORBIDDEN, DefinitionReader, task_support
from toolhub_service.adapters.mcp.job import has_extension
from toolhub_service.adapters.mcp.link import McpLink, McpServer, McpSession
from toolhub_service.adapters.mcp.prompts import PromptReader, completion_definition
from toolhub_service.adapters.mcp.resources import RESOURCE_LISTS, resource_definitions, subscribe_again
from toolhub_service.adapters.mcp.skills import ServedSkill, definition_of, read_skills
from toolhub_service.adapters.mcp.transports.repairs import take_remarks
from toolhub_service.adapters.tool_names import Unnamed, keep_apart, remarks_of, suffix_of, with_suffix
from toolhub_service.adapters.upstream import as_number, quote_foreign, write_json
from toolhub_service.aio.cooperative import TimeSlice, in_thread
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.source import Definition, Discovery, Trust
from toolhub_service.domain.tool import ToolKind
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secrets import Redact

# Upper limits of what a server can make the hub read and store.
PAGES_MAX: Final = 100
TOOLS_MAX: Final = 2_000
LIST_MAX_BYTES: Final = 64 * 1024 * 1024  # of all tools together, as JSON
CURSOR_MAX_CHARS: Final = 64 * 1024
# A tool of this size is checked in a thread: the largest schemas take a quarter of a second.
_LARGE_BYTES: Final = 16 * 1024


class _Lists(NamedTuple):
    """One connection that lists are read over."""

    link: McpLink
    session: McpSession
    mask: Mask
    """Hides the secrets of the source and of its requests in definitions."""
    redact_known: Redact

    def redact(self, text: str) -> str:
        """Hide all known secrets in a text that is no definition."""
        return self.mask.text(self.redact_known(text))

    async def send(self, method: str, cursor: str | None = None) -> JsonObject:
        """Request a page, by default the first. Raises MCPError."""
        return await self.link.send(self.session, method, {} if cursor is None else {"cursor": cursor})


class McpToolSource:
    """Discovers the tools of one server."""

    kind = ToolKind.MCP

    def __init__(
        self,
        server: McpServer,
        terms: SourceTerms,
        repair: RepairSchema,
        redact: Redact,
        *,
        trust: Trust = Trust.FIRST_USE,
        mask: Mask = NO_MASK,
    ) -> None:
        """`repair` raises ToolFailure, HubFailure or ValueError for a schema of which the hub can use nothing.

        `mask` hides the source's own secrets in its definitions; `redact` hides all secrets known to the hub in other
        texts.
        """
        self._server = server
        self.name = terms.name
        self.endpoint = terms.endpoint
        self.trust = trust
        self._redact = redact
        self._terms = terms
        self._repair = repair
        self._mask = mask
        self._reader = DefinitionReader(terms, server.overrides, repair, mask)
        self._prompts = PromptReader(terms, server.overrides, repair)
        self._last_session: McpSession | None = None
        self._repairs: tuple[str, ...] = ()  # of the list of tools, when it was last read
        self._remarks: tuple[str, ...] = ()  # on its definitions
        self._reading = asyncio.Lock()  # one reading at a time, because the reader compares with the last one

    def restore_pinned(self, remote: JsonObject) -> Definition | None:
        """Return a pinned definition under the current terms; None when its tool is no longer offered, and for a skill,
        which only its server can describe."""
        # A served skill needs its list of files to be called, which is known only once the server has been read.
        if "frontmatter" in remote:
            return None
        try:
            if "primitive" in remote or "prompt" in remote:
                return self._restore_primitive(remote)
            definition = self._reader.read(remote, is_modern=False)
        except Unnamed:
            return None
        support = task_support(remote)
        if definition is not None:
            definition = with_suffix(definition, suffix_of(remote))
        if definition is not None and support != FORBIDDEN:
            self._server.task_support.setdefault(definition.spec.resource_id, support)
        return definition

    def _restore_primitive(self, remote: JsonObject) -> Definition | None:
        """Raises Unnamed."""
        if "prompt" in remote:
            prompt = self._prompts.restore_pinned(remote)
            return None if prompt is None else with_suffix(prompt, suffix_of(remote))
        fixed = self._feature_definitions({"resources", "resources.subscribe", "completions"})
        return next((definition for definition in fixed if definition.remote == remote), None)

    def read_registration(self, words: JsonObject) -> Definition:
        """Return the definition of a tool that the server has but does not list, as an operator registered it. Raises
        ValueError."""
        tool = {key: value for key, value in words.items() if key != "resourceId"}
        tool["name"] = words.get("resourceId") or words["name"]
        try:
            definition = self._reader.read(tool, is_modern=False)
        except Unnamed as unnamed:
            raise ValueError(unnamed.problem) from unnamed
        if definition is None:
            raise ValueError("`tools` of its source says that it is not offered")
        return definition

    async def discover(self) -> Discovery:
        async with self._reading:
            login = self._server.login
            if login is None:
                return await self._read_lists(self._server.link, self._mask)
            return await login.read(self._read_lists, self._names)

    async def _read_lists(self, link: McpLink, mask: Mask) -> Discovery:
        """Read everything over this connection: the source's own, or one with a caller's credential."""
        session = await link.session(link.reading_deadline_s())
        lists = _Lists(link, session, mask, self._redact)
        listing = _Listing(self._reader, is_modern=session.is_modern)
        # In 2025-11-25 subscriptions belong to a session, and a new one has none.
        if link is self._server.link and session is not self._last_session:
            if not session.is_modern:
                await subscribe_again(self._server, session)
            self._last_session = session
        self._reader.begin(mask)
        await self._list(lists, listing)
        self._repairs = tuple(listing.repairs)
        self._server.task_support = dict(listing.task_support)
        self._server.has_task_extension = has_extension(session)
        listing.add(await self._skills(lists, listing.problems))
        listing.add(await self._prompts.read_all(link, session, lists.redact, listing.problems, mask))
        listing.add(self._feature_definitions(await self._features(lists, listing.problems)))
        definitions = listing.kept_apart()
        self._remarks = limit_problems([lists.redact(remark) for remark in remarks_of(definitions)])
        return Discovery(
            definitions=definitions,
            problems=limit_problems([lists.redact(problem) for problem in listing.problems]),
            ttl_s=listing.ttl_s,
            server=lists.redact(session.server),
            protocol=session.protocol,
        )

    async def _names(self, link: McpLink, mask: Mask) -> Mapping[str, JsonObject]:
        """Return the tools that another caller is shown, by full name, in the server's words. Changes nothing."""
        session = await link.session(link.reading_deadline_s())
        reader = DefinitionReader(self._terms, self._server.overrides, self._repair, mask)
        listing = _Listing(reader, is_modern=session.is_modern)
        await self._list(_Lists(link, session, mask, self._redact), listing)
        return {definition.spec.name: definition.remote for definition in listing.kept_apart()}

    def listen(self, changed: Callable[[], None]) -> None:
        self._server.changed = changed
        self._server.link.listen(changed)

    def diagnostics(self) -> Sequence[str]:
        lines = list(self._server.link.diagnostics())
        if self._server.login is not None:
            lines += self._server.login.diagnostics()
        if self._repairs:
            lines.append(f"The list of tools was no strict JSON: {'; '.join(self._repairs)}.")
        lines += self._remarks
        return tuple(self._redact("\n".join(lines)).split("\n"))

    async def start(self) -> None:
        self._server.link.start()

    async def close(self) -> None:
        await self._server.close()

    async def _features(self, lists: _Lists, problems: list[str]) -> Collection[str]:
        """Return the features that the server declares and really has: many declare resources because their library
        does."""
        features = lists.session.features - {"resources"}
        # A server may declare resources and have none: one request avoids two useless tools.
        for method, member in RESOURCE_LISTS if "resources" in lists.session.features else ():
            try:
                page = await lists.send(method)
            except MCPError as error:
                if error.error.code != METHOD_NOT_FOUND:
                    excerpt = quote_foreign(error.error.message, lists.redact)
                    problems.append(f"The list of resources could not be read. The server says: {excerpt}")
                continue
            if page.get(member):
                return features | {"resources"}
        return features

    def _feature_definitions(self, features: Collection[str]) -> list[Definition]:
        """Return the tools for resources and completion. Their names depend only on the source's. Raises Unnamed."""
        definitions = []
        if "resources" in features:
            may_subscribe = "resources.subscribe" in features
            definitions = resource_definitions(self._terms, self._server.overrides, may_subscribe=may_subscribe)
        completion = completion_definition(self._terms, self._server.overrides) if "completions" in features else None
        return definitions if completion is None else [*definitions, completion]

    async def _skills(self, lists: _Lists, problems: list[str]) -> list[Definition]:
        """Return the tools that read the skills which the server serves."""
        definitions: list[Definition] = []
        known: dict[str, ServedSkill] = {}
        for skill in await read_skills(lists.link, lists.session, lists.redact, lists.mask, problems):
            try:
                definition = definition_of(skill, self._terms, self._server.overrides)
            except Unnamed as unnamed:
                problems.append(unnamed.problem)
                continue
            if definition is not None:
                definitions.append(definition)
                known[definition.spec.resource_id] = skill
        self._server.skills = known
        return definitions

    async def _list(self, lists: _Lists, listing: _Listing) -> None:
        cursors: set[str] = set()  # a server might return the same one for ever
        cursor: str | None = None
        tools: object = None
        for _ in range(PAGES_MAX):
            page = await self._page(lists, cursor, listing)
            # An empty cursor is a cursor like any other, but some servers mean the end and give the same page again.
            if page is None or (cursor == "" and page.get("tools") == tools):
                return
            tools = page.get("tools")
            if cursor is None and not isinstance(tools, list | tuple):
                raise refuse(ErrorKind.TOOL_UNAVAILABLE, "The list of tools could not be read. It holds no tools.")
            await listing.take(page)
            following = page.get("nextCursor")
            if following is None or listing.is_full:
                return
            if not isinstance(following, str) or len(following) > CURSOR_MAX_CHARS or following in cursors:
                listing.problems.append("The pages of the list of tools form a loop; the rest was not read.")
                return
            cursors.add(following)
            cursor = following
        listing.problems.append(f"The list of tools has more than {PAGES_MAX} pages; the rest was not read.")

    async def _page(self, lists: _Lists, cursor: str | None, listing: _Listing) -> JsonObject | None:
        """Return one page; None when the server has none, or none after those already read."""
        try:
            return await lists.send("tools/list", cursor)
        except MCPError as error:
            # A server may have only prompts or resources.
            if cursor is None and error.error.code == METHOD_NOT_FOUND:
                if not lists.session.features:
                    listing.problems.append("The server offers no tools.")
                return None
            breakage = failures.breakage_in(error)
            reason = (
                breakage.value if breakage else f"The server says: {quote_foreign(error.error.message, lists.redact)}"
            )
            if cursor is None:
                failure = refuse(ErrorKind.TOOL_UNAVAILABLE, f"The list of tools could not be read. {reason}")
                if breakage is failures.Breakage.UNAUTHORIZED:
                    failure = failures.CredentialsRefused(failure.error)
                raise failure from error
            if cursor or breakage:
                listing.problems.append(f"The list of tools was read only in part. {reason}")
            return None


class _Listing:
    """The result of one reading so far."""

    def __init__(self, reader: DefinitionReader, *, is_modern: bool) -> None:
        self._reader = reader
        self._is_modern = is_modern
        self._found: list[Definition] = []
        self._seen = 0
        self.problems: list[str] = []
        self.repairs: dict[str, None] = {}
        """What was repaired in the JSON of the pages."""
        self.task_support: dict[str, str] = {}
        self.ttl_s: float | None = None

    @property
    def is_full(self) -> bool:
        return self._seen >= TOOLS_MAX or self._reader.read_bytes > LIST_MAX_BYTES

    async def take(self, page: JsonObject) -> None:
        self._note_ttl(page.get("ttlMs"))
        self.repairs |= dict.fromkeys(take_remarks(page)[1])
        tools = page.get("tools")
        if not isinstance(tools, list | tuple):
            self.problems.append("A page of the list of tools holds no tools.")
            return
        time_slice = TimeSlice()
        for tool in tools:
            if self.is_full:
                break
            self._seen += 1
            if len(write_json(tool) or b"") > _LARGE_BYTES:
                await in_thread(self._take, tool)
            else:
                self._take(tool)
            await time_slice.pause_if_due()
        if self.is_full:
            self.problems.append(f"The list of tools was cut at {self._seen} tools ({self._reader.read_bytes} bytes).")

    def add(self, definitions: Iterable[Definition]) -> None:
        """Add definitions of what the server offers besides tools."""
        self._found += definitions

    def kept_apart(self) -> tuple[Definition, ...]:
        """Return the definitions sorted by their own names, under names that no reader confuses."""
        return tuple(keep_apart(self._found, self.problems))

    def _take(self, tool: JsonValue) -> None:
        try:
            definition = self._reader.read(tool, is_modern=self._is_modern)
        except Unnamed as unnamed:
            self.problems.append(unnamed.problem)
            return
        if definition is None:
            return
        self._found.append(definition)
        support = task_support(definition.remote)
        if support != FORBIDDEN and not self._is_modern:
            self.task_support[definition.spec.resource_id] = support

    def _note_ttl(self, ttl_ms: JsonValue) -> None:
        """Note the shortest of all pages; 0 only forbids copies and is ignored."""
        given_ms = as_number(ttl_ms) or 0.0
        if self._is_modern and given_ms > 0:
            self.ttl_s = min(given_ms / 1_000, inf if self.ttl_s is None else self.ttl_s)
