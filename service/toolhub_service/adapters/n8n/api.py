"""n8n's public API (`/api/v1`), as far as the hub uses it to find, follow and stop workflows.

Checked against the OpenAPI of 2.8.4 and 2.41.3: no route starts a workflow, so a workflow "by id" is called by the
webhook that the API reports. `POST /executions/{id}/stop` exists from 2.10 on; before that the router itself answers
404 with `not found`, while a missing execution is `Not Found`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from math import inf
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from toolhub_service.adapters.n8n.client import LARGE_BYTES, N8nClient, NoReply, Reply, message_of
from toolhub_service.adapters.n8n.execution import Execution, execution_of, has_all_keys, keys_of
from toolhub_service.adapters.n8n.workflow import id_of, published_version
from toolhub_service.adapters.upstream import as_object, retry_after_s
from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.schema.repaired_json import loads_repaired

Value = TypeVar("Value")

# The first answer after a start of n8n took 2.3 s.
REQUEST_S: Final = 30.0
PAGES_MAX: Final = 50
WORKFLOWS_MAX: Final = 2_000
_WORKFLOWS_A_PAGE: Final = 50
_DEPTH_MAX: Final = 64
_CURSOR_MAX_CHARS: Final = 4_096
CLOCK_SKEW_MS: Final = 120_000
"""How far n8n's clock may be behind."""
_STATUSES: Final = ("running", "waiting", "")
# Modes of executions that a call may have started, unlike those of timers and the like.
_MODES: Final = frozenset({"", "webhook", "retry"})
_LISTED_MAX: Final = 50
_READ_MAX: Final = 60
_REMEMBERED_MAX: Final = 4_096
# Per execution; one with more is read again each time.
_KEYS_MAX: Final = 16
_NO_EXECUTION: Final = "Not Found"
_NOT_STOPPABLE: Final = "Only running or waiting executions can be stopped"


class ApiError(Exception):
    """The API gave no usable answer. `reason` is a sentence in the hub's words."""

    def __init__(self, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class ApiRefused(ApiError):
    """The API rejects the key, or the key lacks a permission: a repeat does not help."""


class ApiTooLarge(ApiError):
    """The answer exists but is larger than may be read."""


class NotFound(Exception):
    """The API answers that there is no such thing."""


class Found(NamedTuple):
    execution: Execution
    """With its data."""
    others: int = 0
    """Number of other executions with the same key."""


class Stop(Enum):
    ASKED = "asked"
    OVER = "over"
    """It has already ended by itself."""
    IMPOSSIBLE = "impossible"
    """This version of n8n cannot do it."""


class N8nApi:
    """Requests to the API. Each raises ApiError when there is no usable answer."""

    def __init__(self, client: N8nClient, url: str, api_key: str) -> None:
        self._client = client
        self._url = url
        self._headers = (("x-n8n-api-key", api_key),)
        # One large answer at a time: each may be megabytes, and threads would share the interpreter's lock.
        self._reading = asyncio.Semaphore(1)
        # By execution and its start, all keys that it was called with; these never change.
        self._keys: OrderedDict[tuple[str, str], frozenset[str]] = OrderedDict()

    async def execution(self, execution_id: str, *, with_data: bool, timeout_s: float = REQUEST_S) -> Execution:
        """Return an execution. Raises NotFound; ApiTooLarge when its data are too large to be read."""
        return await self.check_execution(
            execution_id, lambda execution: execution, with_data=with_data, timeout_s=timeout_s
        )

    async def check_execution(
        self,
        execution_id: str,
        check: Callable[[Execution], Value],
        *,
        with_data: bool = True,
        timeout_s: float = REQUEST_S,
    ) -> Value:
        """Return the result of `check` for an execution, computed in a thread where its data are large. Raises as
        `execution`."""

        def read(value: JsonValue) -> tuple[Value] | None:
            if (as_object(value) or {}).get("dataTooLargeToDisplay") is True:
                return None
            execution = execution_of(value)
            if execution is None or execution.id != execution_id:
                raise ApiError("Its API sent an invalid description of an execution.")
            # In a tuple, so that a result of None is not confused with missing data.
            return (check(execution),)

        path, query = f"/executions/{execution_id}", {"includeData": "true" if with_data else "false"}
        found = await self._get(path, query, timeout_s, read)
        if found is None:  # of newer versions, which accept this too
            found = await self._get(path, {**query, "ignoreDataSizeLimit": "true"}, timeout_s, read)
        if found is None:
            raise ApiTooLarge("Its API does not return the data of the execution.")
        return found[0]

    async def executions(self, workflow_id: str, status: str) -> Sequence[Execution]:
        """Return the newest executions of a workflow, or of all (empty); with one status, or, empty, those that have
        ended."""
        query = {"limit": str(_LISTED_MAX), "includeData": "false"}
        if workflow_id:
            query["workflowId"] = workflow_id
        if status:
            query["status"] = status
        page = await self._get("/executions", query, REQUEST_S, _fields)
        rows = page.get("data")
        if not isinstance(rows, list):
            raise ApiError("Its API sent an invalid list of executions.")
        return [execution for execution in map(execution_of, rows[:_LISTED_MAX]) if execution is not None]

    # If an answer does not name its execution, the execution is found by the key that was sent. n8n cannot search by
    # key, so the newest executions are read one by one. A list may miss one that has just ended, and one that is not
    # saved is never listed: finding nothing proves nothing. One call may have started two executions, where a proxy
    # repeats requests; the older one counts, because a workflow that checks its keys does its work in that one.
    #
    # Lists come without data. n8n can only return the whole data of a candidate; they are read once: the key of an
    # execution never changes, so executions of other calls are remembered.

    async def find(self, workflow_id: str, key: str, sent_at_unix_ms: int) -> Found | None:
        """Return the execution with the key, started after it was sent. Raises ApiError when the look-up fails."""
        found: dict[str, Execution] = {}
        seen: set[str] = set()
        # The list without a status omits running and waiting executions (2.8.4).
        for status in _STATUSES:
            for listed in await self.executions(workflow_id, status):
                if listed.id in seen or len(seen) >= _READ_MAX or not self._may_be(listed, key, sent_at_unix_ms):
                    continue
                seen.add(listed.id)
                execution = await self._with_key(listed, key)
                if execution is not None:
                    found[listed.id] = execution
        if not found:
            return None
        return Found(min(found.values(), key=_age), len(found) - 1)

    def _may_be(self, listed: Execution, key: str, sent_at_unix_ms: int) -> bool:
        started = listed.started_unix_ms
        is_older = started is not None and started < sent_at_unix_ms - CLOCK_SKEW_MS
        return listed.mode in _MODES and not is_older and key in self._keys.get((listed.id, listed.started_at), (key,))

    async def _with_key(self, listed: Execution, key: str) -> Execution | None:
        """Return the execution with its data when it has the key. The data of others are dropped where they
        were read."""

        def check(execution: Execution) -> tuple[Execution | None, frozenset[str] | None]:
            keys = keys_of(execution)
            return execution if key in keys else None, keys if has_all_keys(execution) else None

        try:
            execution, keys = await self.check_execution(listed.id, check)
        except (NotFound, ApiTooLarge):
            return None  # its call cannot be known
        if keys is not None and len(keys) <= _KEYS_MAX:
            self._keys[listed.id, listed.started_at] = keys
            if len(self._keys) > _REMEMBERED_MAX:
                self._keys.popitem(last=False)
        return execution

    async def stop(self, execution_id: str) -> Stop:
        """Stop an execution. Raises NotFound when there is none."""
        # Before 2.10 there is no such route: the router answers `not found`, for an execution it is `Not Found`. One
        # that has ended is answered with 500 and a sentence.
        answer = await self._ask("POST", f"/executions/{execution_id}/stop", REQUEST_S)
        if answer.status // 100 == 2:
            return Stop.ASKED
        words, _ = message_of(answer.body)
        if _NOT_STOPPABLE in words:
            return Stop.OVER
        if answer.status == 404 and words == _NO_EXECUTION:
            raise NotFound
        if answer.status in (404, 405, 501):
            return Stop.IMPOSSIBLE
        raise _error(answer)

    async def workflow(self, workflow_id: str) -> JsonObject:
        """Return the published workflow with its description, which lists omit. Raises NotFound."""
        found = await self._get(f"/workflows/{workflow_id}", {}, REQUEST_S, _fields)
        if id_of(found.get("id")) != workflow_id:
            raise ApiError("Its API sent an invalid description of a workflow.")
        return published_version(found)

    async def workflows(self) -> AsyncIterator[JsonObject]:
        """Yield the active workflows of all pages, within limits."""
        query = {"active": "true", "limit": str(_WORKFLOWS_A_PAGE), "excludePinnedData": "true"}
        seen, cursors = 0, set[str]()
        for _ in range(PAGES_MAX):
            page = await self._get("/workflows", query, REQUEST_S, _fields)
            rows = page.get("data")
            if not isinstance(rows, list):
                raise ApiError("Its API sent an invalid list of workflows.")
            for row in rows:
                workflow = as_object(row)
                if workflow is not None and seen < WORKFLOWS_MAX:
                    seen += 1
                    yield published_version(workflow)
            cursor = page.get("nextCursor")
            if not cursor:
                return
            if not isinstance(cursor, str) or len(cursor) > _CURSOR_MAX_CHARS or cursor in cursors:
                raise ApiError("The pages of its list of workflows form a loop; the rest was not read.")
            cursors.add(cursor)
            query["cursor"] = cursor
        raise ApiError(f"Its list of workflows has more than {PAGES_MAX} pages; the rest was not read.")

    async def _get(
        self, path: str, query: dict[str, str], timeout_s: float, read: Callable[[JsonValue], Value]
    ) -> Value:
        """Return `read` of the answer; a large one is read in a thread, one at a time."""
        answer = await self._ask("GET", f"{path}?{urlencode(query)}" if query else path, timeout_s)
        if answer.status == 404 and message_of(answer.body)[0] == _NO_EXECUTION:
            raise NotFound
        if answer.status != 200:
            raise _error(answer)
        if answer.is_cut:
            raise ApiTooLarge("The response of its API is larger than `max_response_bytes`.")
        if len(answer.body) <= LARGE_BYTES:
            return read(_value(answer.body))
        async with self._reading:
            return await in_thread(lambda: read(_value(answer.body)))

    async def _ask(self, method: str, path: str, timeout_s: float) -> Reply:
        deadline_s = inf if timeout_s == inf else asyncio.get_running_loop().time() + timeout_s
        try:
            return await self._client.send(method, f"{self._url}{path}", self._headers, deadline_s=deadline_s)
        except NoReply as broken:
            raise ApiError(f"Its API did not answer. {broken.reason}") from None
        except ToolFailure as failure:
            raise ApiError(failure.error.message) from failure


def _value(body: bytes) -> JsonValue:
    try:
        return loads_repaired(body, max_bytes=len(body), max_depth=_DEPTH_MAX).value
    except ToolFailure:
        raise ApiError("The response of its API is not JSON, or is nested too deeply.") from None


def _fields(value: JsonValue) -> JsonObject:
    return as_object(value) or {}


def _error(answer: Reply) -> ApiError:
    if answer.status == 401:
        return ApiRefused("Its API does not accept the `api_key`; an operator must correct it.")
    if answer.status == 403:
        return ApiRefused("The `api_key` lacks a scope for this; an operator must add it.")
    if answer.status == 404:
        return ApiError("Its API was not found at `url` and `api_path`; an operator must correct them.")
    wait_s = retry_after_s(answer.headers.get("retry-after"))
    return ApiError(f"Its API answered with status {answer.status}.", retry_after_s=wait_s)


def _age(execution: Execution) -> tuple[int, int, str]:
    started = execution.started_unix_ms
    # Ids are numbers written as text: the shorter one is the smaller.
    return (2**63 if started is None else started, len(execution.id), execution.id)
