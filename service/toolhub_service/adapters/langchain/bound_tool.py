"""One loaded LangChain tool, inspected once: its arguments, where it runs, and one way to call it.

Every call has the full ToolCall form: only then does LangChain return the artifact, mark an error by its status and
pass the call's id to tools that declare it. A reply is plain JSON, whether it was made on the event loop or in a
worker: `{"value": …, "status": "success"|"error", "repairs": […], "runs": […]}` or `{"failed": <why>, …, "runs": […]}`.
"""

from __future__ import annotations

import asyncio
import functools
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, ValidationError

from toolhub_service.adapters.langchain.contract import Contract, contract_of, is_generator, runs_on_loop
from toolhub_service.adapters.upstream import as_string
from toolhub_service.schema.repaired_json import repair_value

# The value of a result has one shape for all tools: `{"text": …}`, with `content` and `artifact` if there are any.
# `text` is for the model; `content` has the blocks of a result that is more than one text; `artifact` is the second
# half of `content_and_artifact`: itself where it is JSON and small enough, else a description.


class TooLarge(Exception):
    """The text or the content exceeds the limit of a result."""


class NotAResult(Exception):
    """The value has no meaning outside LangChain, such as a command to a graph; the message says what it is."""


def value_of(given: Any, max_bytes: int) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Return the value, its status, `success` or `error`, and what was repaired in it. Raises TooLarge, NotAResult."""
    messages = given if isinstance(given, list) else [given]
    if not messages or not all(isinstance(message, ToolMessage) for message in messages):
        odd = next((message for message in messages if not isinstance(message, ToolMessage)), given)
        raise NotAResult(f"it returned a {type(odd).__name__}, which only a LangChain graph can use")
    contents = [message.content for message in messages]
    content: Any
    content, repairs = repair_value(contents[0] if len(contents) == 1 else _flat(contents))
    value = _value(content, max_bytes)
    artifacts = [message.artifact for message in messages if message.artifact is not None]
    if artifacts:
        value["artifact"] = _artifact(artifacts[0] if len(artifacts) == 1 else artifacts, max_bytes)
    status = "error" if any(message.status == "error" for message in messages) else "success"
    return value, status, repairs


def _flat(contents: Sequence[Any]) -> list[Any]:
    return [block for content in contents for block in ([content] if isinstance(content, str) else content)]


def _value(content: str | list[Any], max_bytes: int) -> dict[str, Any]:
    if isinstance(content, str):
        data = content.encode("utf-8", "replace")
        if len(data) > max_bytes:
            raise TooLarge
        return {"text": content if content.isascii() else data.decode()}
    # Through JSON and back: whatever classes a tool returned, only plain values leave the worker.
    data = orjson.dumps(content, default=_described, option=orjson.OPT_NON_STR_KEYS)
    if len(data) > max_bytes:
        raise TooLarge
    blocks = orjson.loads(data)
    return {"text": "\n".join(filter(None, map(_text, blocks))), "content": blocks}


def _text(block: Any) -> str:
    if isinstance(block, str):
        return block
    return as_string(block.get("text")) if isinstance(block, dict) else ""


def _artifact(artifact: Any, max_bytes: int) -> Any:
    try:
        data = orjson.dumps(repair_value(artifact).value, default=_plain)
    except (TypeError, ValueError, RecursionError):
        return _described(artifact)
    if len(data) > max_bytes:
        return _described(artifact) | {"bytes": len(data), "omitted": f"larger than {max_bytes} bytes"}
    return orjson.loads(data)


def _plain(part: Any) -> Any:
    if isinstance(part, BaseModel):
        return repair_value(part.model_dump(mode="json")).value
    raise TypeError


def _described(thing: Any) -> dict[str, Any]:
    """Return a description of a value that is not JSON."""
    of = type(thing)
    described: dict[str, Any] = {"type": f"{of.__module__}.{of.__qualname__}", "omitted": "not JSON"}
    if isinstance(thing, bytes | bytearray | memoryview):
        described["bytes"] = len(thing)
    return described


# A callback handler records name, kind, times and parent of each nested run of tools, models, chains and retrievers,
# but no values. The hub makes spans from these records afterwards, whether the call ran on its own loop or in a worker.
# LangChain's run of the called tool itself is left out: it is the hub's span `execute_tool`.

RUNS_MAX: Final = 200  # per call; further ones are not recorded
_NAME_CHARS: Final = 100


class RunRecorder(BaseCallbackHandler):
    """Records one call."""

    run_inline = True
    """Called where the run happens: it is fast, and an executor would change the order."""

    def __init__(self) -> None:
        self._records: list[list[Any]] = []
        self._indexes: dict[UUID, int] = {}
        # The run of the called tool itself: the first. If a tool passes its own config on, the parent of its nested
        # runs is unknown, and they count as this one's.
        self._called: UUID | None = None

    def records(self) -> list[list[Any]]:
        """Return a list of `[kind, name, start_ns, end_ns, parent, error]`, wall clock; `parent`: index in this list,
        or -1.

        A run that has not ended ends now.
        """
        now_ns = time.time_ns()
        return [[*record[:3], record[3] or now_ns, *record[4:]] for record in self._records]

    def on_tool_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("execute_tool", serialized, **about)

    def on_chain_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("invoke_chain", serialized, **about)

    def on_llm_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("text_completion", serialized, **about)

    def on_chat_model_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("chat", serialized, **about)

    def on_retriever_start(self, serialized: Any, *args: Any, **about: Any) -> None:
        self._begin("retrieval", serialized, **about)

    def on_tool_end(self, output: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **about: Any) -> None:
        self._end(run_id, error)

    on_chain_error = on_llm_error = on_retriever_error = on_tool_error

    def _begin(
        self, kind: str, serialized: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **about: Any
    ) -> None:
        if self._called is None:
            self._called = run_id
        elif len(self._records) < RUNS_MAX:
            parent = -1 if parent_run_id is None else self._indexes.get(parent_run_id, -1)
            self._indexes[run_id] = len(self._records)
            self._records.append([kind, _name(serialized, about), time.time_ns(), 0, parent, ""])

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        index = self._indexes.get(run_id)
        if index is not None:
            record = self._records[index]
            record[3] = time.time_ns()
            record[5] = "" if error is None else type(error).__name__


def _name(serialized: Any, about: Mapping[str, Any]) -> str:
    named = about.get("name") or (serialized.get("name") if isinstance(serialized, Mapping) else None) or ""
    # A lone surrogate cannot be encoded as JSON, and the whole reply would be lost for a span's name.
    return str(named)[:_NAME_CHARS].encode("utf-8", "replace").decode()


_MESSAGE_CHARS: Final = 4000
_TRACE_CHARS: Final = 8000
_EMPTY: Final = Contract({"type": "object"}, frozenset(), frozenset())

Reply = dict[str, Any]


class ToolExited(Exception):
    """The tool called `sys.exit`, which must not end the hub."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool and what is known of it."""

    tool: BaseTool
    """The tool that is called: for async tools a copy of the loaded one."""
    own_name: str
    description: str
    on_loop: bool
    contract: Contract
    problem: str
    """Why it cannot be called; empty when it can."""

    @property
    def schema(self) -> dict[str, Any]:
        return self.contract.schema

    def request(
        self,
        args: Mapping[str, Any],
        injected: Mapping[str, str],
        *,
        call_id: str,
        metadata: Mapping[str, str],
        traced: bool,
    ) -> dict[str, Any]:
        """Return one call as plain JSON: without injected arguments of the caller, and with all that the operator
        injects."""
        hidden = self.contract.injected
        if hidden:
            # A caller's value for an injected name is dropped: only the hub may identify the caller.
            args = {name: value for name, value in args.items() if name not in hidden}
            args |= {name: value for name, value in injected.items() if name in hidden}
        return {"tool": self.own_name, "args": args, "call_id": call_id, "metadata": metadata, "traced": traced}

    async def ask(self, call: Mapping[str, Any], max_bytes: int) -> Reply:
        """Call the tool on the event loop. `call`: as `request` makes it; `cause` of the reply is for the log."""
        recorder = RunRecorder() if call["traced"] else None
        try:
            message = await self.tool.ainvoke(_tool_call(call), config=_config(call, recorder))
            return _reply_of(message, max_bytes, recorder)
        except Exception as error:  # noqa: BLE001  whatever a tool raises becomes a reply
            return self._failed(error, recorder) | {"cause": error}

    def call_blocking(self, call: Mapping[str, Any], max_bytes: int) -> Reply:
        """Call the tool in this thread, for as long as it takes. For workers."""
        recorder = RunRecorder() if call["traced"] else None
        try:
            if self.on_loop:
                answer = _loop().run(self.tool.ainvoke(_tool_call(call), config=_config(call, recorder)))
            else:
                answer = self.tool.invoke(_tool_call(call), config=_config(call, recorder))
            return _reply_of(answer, max_bytes, recorder)
        # A tool that calls sys.exit() must not end the worker that other calls wait for.
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:  # noqa: BLE001
            trace = "".join(traceback.format_exception(error))[-_TRACE_CHARS:]
            return self._failed(error, recorder) | {"trace": _printable(trace)}

    def _failed(self, error: BaseException, recorder: RunRecorder | None) -> Reply:
        runs = recorder.records() if recorder is not None else []
        reply: Reply = {"failed": "crash", "type": type(error).__name__, "runs": runs}
        if isinstance(error, ToolException):
            return reply | {"failed": "tool", "message": _printable(str(error)[:_MESSAGE_CHARS])}
        if isinstance(error, TooLarge):
            return reply | {"failed": "too_large"}
        if isinstance(error, NotAResult):
            return reply | {"failed": "no_result", "message": str(error)}
        if isinstance(error, ValidationError) and self._is_about_arguments(error):
            return reply | {"failed": "input", "violations": _violations(error)}
        # Anything else (SystemExit, a CancelledError that it raises itself) stays "crash", and its text is not shown.
        if isinstance(error, Exception) and not isinstance(error, ToolExited):
            return reply | {"failed": "exception", "message": _message_of(error)}
        return reply

    def _is_about_arguments(self, error: ValidationError) -> bool:
        """Return whether the error is about the tool's arguments; a tool may also raise one for data that it reads
        itself."""
        schema: Any = self.tool.args_schema
        return isinstance(schema, type) and error.title == getattr(schema, "__name__", "")


def bound(tool: BaseTool, given: frozenset[str]) -> BoundTool:
    """Inspect a tool. `given`: injected arguments that the operator has configured."""
    contract, problem = _EMPTY, ""
    try:
        contract = contract_of(tool)
    except Exception as error:  # noqa: BLE001  a schema is made by foreign code
        problem = f"Its arguments cannot be described as JSON Schema: {type(error).__name__}."
    missing = sorted(contract.required - given)
    if missing:
        problem = f"It needs injected arguments that `inject` of its source does not name: {', '.join(missing)}."
    if contract.aliased:
        names = ", ".join(sorted(contract.aliased))
        problem = f"It reads injected arguments under aliases, which cannot be guarded: {names}."
    if is_generator(tool):
        problem = "It returns a generator, but a call has one result."
    on_loop = runs_on_loop(tool)
    called = tool
    if on_loop and not problem:
        try:
            called = _without_system_exit(tool)
        except Exception as error:  # noqa: BLE001  likewise
            problem = f"It cannot be prepared for calls: {type(error).__name__}."
    return BoundTool(called, tool.name, tool.description or "", on_loop, contract, problem)


@functools.cache
def _loop() -> asyncio.Runner:
    """Return one loop for all calls of a worker: what a tool keeps, such as a connection, belongs to its loop."""
    return asyncio.Runner()


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_call", "id": call["call_id"], "name": call["tool"], "args": dict(call["args"])}


def _config(call: Mapping[str, Any], recorder: RunRecorder | None) -> Any:
    return {
        "callbacks": [recorder] if recorder is not None else None,
        "tags": ["toolhub"],
        "metadata": call["metadata"],
    }


def _reply_of(message: Any, max_bytes: int, recorder: RunRecorder | None) -> Reply:
    value, status, repairs = value_of(message, max_bytes)
    runs = recorder.records() if recorder is not None else []
    return {"value": value, "status": status, "repairs": list(repairs), "runs": runs}


def _violations(error: ValidationError) -> list[list[str]]:
    """Return JSON Pointer, kind and message of at most five violations, without the values."""
    # Without the input: it may be a secret in the wrong argument, and the message goes to a model.
    details = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    return [["".join(f"/{step}" for step in one["loc"]), one["type"], _printable(one["msg"][:300])] for one in details]


def _message_of(error: Exception) -> str:
    """Return its text, truncated; empty when that raises too. Values that pydantic could not parse are left out."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{path or '/'}: {text}" for path, _, text in _violations(error))
    try:
        return _printable(str(error)[:_MESSAGE_CHARS])
    except Exception:  # noqa: BLE001  code of anybody
        return ""


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _without_system_exit(tool: BaseTool) -> BaseTool:
    """Return a copy whose `_arun` never raises SystemExit: LangChain runs it in a task, where that ends the event loop.

    The copy is not verbose either: arguments would be printed to the hub's own output.
    """
    copy = tool.model_copy(update={"verbose": False})
    inner = copy._arun  # noqa: SLF001

    @functools.wraps(inner)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        try:
            return await inner(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as left:
            raise ToolExited from left

    # Bypasses pydantic, which takes a name that begins with `_` for a private attribute and refuses it.
    object.__setattr__(copy, "_arun", arun)
    return copy
