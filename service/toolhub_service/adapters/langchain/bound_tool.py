"""One loaded LangChain tool, inspected once: its arguments, where it runs, and one way to call it.

Every call has the full ToolCall form: only then does LangChain return the artifact, mark an error by its status and
pass the call's id to tools that declare it. A reply is plain JSON, whether it was made on the event loop or in a
worker: `{"value": …, "status": "success"|"error", "repairs": […], "runs": […]}` or `{"failed": <why>, …, "runs": […]}`.
"""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from langchain_core.tools import BaseTool, ToolException
from pydantic import ValidationError

from toolhub_service.adapters.langchain.async_code import is_generator, runs_on_loop
from toolhub_service.adapters.langchain.contract import Contract, contract_of
from toolhub_service.adapters.langchain.result_value import NotAResult, TooLarge, value_of
from toolhub_service.adapters.langchain.run_recorder import RunRecorder

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
            return self._failure_reply(error, recorder) | {"cause": error}

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
            return self._failure_reply(error, recorder) | {"trace": _printable(trace)}

    def _failure_reply(self, error: BaseException, recorder: RunRecorder | None) -> Reply:
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


def bind_tool(tool: BaseTool, given: frozenset[str]) -> BoundTool:
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
