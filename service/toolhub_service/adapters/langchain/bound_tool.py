"""One loaded LangChain tool, examined once: what it takes, where it runs, and one way to call it.

Every call has the full ToolCall form: only then does LangChain keep the artifact, tell an error by its status and give
the call's id to tools that ask for it. A reply is plain JSON, whether it was made on the event loop or in a worker:
`{"value": …, "status": "success"|"error", "runs": […]}` or `{"failed": <why>, …, "runs": […]}`.
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

from toolhub_service.adapters.langchain.contract import Contract, contract_of
from toolhub_service.adapters.langchain.nature import is_generator, runs_on_loop
from toolhub_service.adapters.langchain.result_value import NotAResult, TooLarge, value_of
from toolhub_service.adapters.langchain.runs import RunRecorder

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
    """What is called: for async tools a copy of what was loaded."""
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
        """One call as plain JSON: nothing injected that the caller sent, and all that the operator injects."""
        hidden = self.contract.injected
        if hidden:
            args = {name: value for name, value in args.items() if name not in hidden}
            args |= {name: value for name, value in injected.items() if name in hidden}
        return {"tool": self.own_name, "args": args, "call_id": call_id, "metadata": metadata, "traced": traced}

    async def ask(self, call: Mapping[str, Any], max_bytes: int) -> tuple[Reply, Exception | None]:
        """Call it on the event loop; the exception is for the log. `call`: as `request` makes it."""
        recorder = RunRecorder() if call["traced"] else None
        try:
            message = await self.tool.ainvoke(_tool_call(call), config=_config(call, recorder))
            return _replied(message, max_bytes, recorder), None
        except Exception as error:  # noqa: BLE001  whatever a tool raises becomes a reply
            return self._failed(error, recorder), error

    def ask_here(self, call: Mapping[str, Any], max_bytes: int) -> Reply:
        """Call it in this thread, for as long as it takes. For workers."""
        recorder = RunRecorder() if call["traced"] else None
        try:
            return _replied(self.tool.invoke(_tool_call(call), config=_config(call, recorder)), max_bytes, recorder)
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
        return reply

    def _is_about_arguments(self, error: ValidationError) -> bool:
        """A tool may also meet one in what it reads itself."""
        schema: Any = self.tool.args_schema
        return isinstance(schema, type) and error.title == getattr(schema, "__name__", "")


def bound(tool: BaseTool, given: frozenset[str]) -> BoundTool:
    """Examine a tool. `given`: injected arguments that the operator has filled."""
    contract, problem = _EMPTY, ""
    try:
        contract = contract_of(tool)
    except Exception as error:  # noqa: BLE001  a schema is made by foreign code
        problem = f"Its arguments cannot be told as JSON Schema: {type(error).__name__}."
    missing = sorted(contract.required - given)
    if missing:
        problem = f"It needs injected arguments that `inject` of its source does not name: {', '.join(missing)}."
    if contract.aliased:
        names = ", ".join(sorted(contract.aliased))
        problem = f"It reads injected arguments under other names (aliases), where they cannot be guarded: {names}."
    if is_generator(tool):
        problem = "It gives a generator, and a call has one result."
    on_loop = runs_on_loop(tool)
    called = tool
    if on_loop and not problem:
        try:
            called = _exit_kept_inside(tool)
        except Exception as error:  # noqa: BLE001  likewise
            problem = f"It cannot be prepared for calls: {type(error).__name__}."
    return BoundTool(called, tool.name, tool.description or "", on_loop, contract, problem)


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "tool_call", "id": call["call_id"], "name": call["tool"], "args": dict(call["args"])}


def _config(call: Mapping[str, Any], recorder: RunRecorder | None) -> Any:
    return {
        "callbacks": [recorder] if recorder is not None else None,
        "tags": ["toolhub"],
        "metadata": call["metadata"],
    }


def _replied(message: Any, max_bytes: int, recorder: RunRecorder | None) -> Reply:
    value, status = value_of(message, max_bytes)
    return {"value": value, "status": status, "runs": recorder.records() if recorder is not None else []}


def _violations(error: ValidationError) -> list[list[str]]:
    """JSON Pointer, kind and sentence of each of at most five; the values are left out."""
    told = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    return [["".join(f"/{step}" for step in one["loc"]), one["type"], _printable(one["msg"][:300])] for one in told]


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _exit_kept_inside(tool: BaseTool) -> BaseTool:
    """A copy whose `_arun` never raises SystemExit: LangChain runs it in a task, where that ends the event loop.

    It is not verbose either: arguments would be printed to the hub's own output.
    """
    copy = tool.model_copy(update={"verbose": False})
    inner = copy._arun  # noqa: SLF001

    @functools.wraps(inner)
    async def arun(*args: Any, **kwargs: Any) -> Any:
        try:
            return await inner(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as left:
            raise ToolExited from left

    object.__setattr__(copy, "_arun", arun)
    return copy
