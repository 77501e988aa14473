"""The calls of one program: its functions as inner calls of the hub, counted, limited, and reported as progress.

A tool's failure is raised in the program as RuntimeError with the text `KIND: message`; `error_of` returns its details.
A program's own statements are not trusted: which calls were made, and how they ended, is recorded here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from toolhub_service.domain.call import Suspended
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import ToolResult
from toolhub_service.registry.export.stubs import FunctionName
from toolhub_service.tools.context import ToolProgress
from toolhub_service.tools.programs.interpreter import BUILT_IN_CALL
from toolhub_service.tools.tool import ToolOutput

AT_ONCE_MAX: Final = 8
"""Concurrent calls of one program; more wait in their order."""
VALUES_MAX: Final = 200_000
_DEPTH_MAX: Final = 60
_RECENT_CHARS: Final = 3_800
"""Limit of a report's list of recent calls."""
_CHANGE_CHARS: Final = 130
# Python formats an integer in quadratic time: one of a few million digits would block the hub.
_INTEGER_BITS_MAX: Final = 1_024
_TEXT_CHARS_MAX: Final = 200
PURPOSE: Final = "a program's call"


class ProgramCall(ToolOutput, frozen=True):
    """One call that a program has made."""

    tool: str
    call_id: Annotated[str, Meta(description="Empty: it was cancelled before it had one.")]
    ok: bool
    kind: Annotated[str, Meta(description="How it failed; empty when it did not.")] = ""


CallState = Literal["STARTED", "SUCCEEDED", "FAILED", "CANCELLED"]


class CallChange(ToolOutput, frozen=True):
    """A call of a program that has begun or ended."""

    call: int
    """Which one of the program, from 1."""
    tool: str
    state: CallState
    call_id: str = ""
    kind: str = ""


class ProgramProgress(ToolProgress, frozen=True, kw_only=True, rename="camel"):
    """Reported when a call begins and when it has ended. A slow reader gets only the newest report, so each
    report has the earlier changes, too."""

    recent: tuple[CallChange, ...] = ()
    """The newest last."""


class CallFailed(RuntimeError):
    """Raised in the program, which may catch it."""


class ProgramCalls:
    """Implements `Host`. `made` lists the calls, in the order in which the program made them."""

    def __init__(
        self,
        calls: InnerCalls,
        tools: Mapping[FunctionName, str],
        report: Callable[[ProgramProgress], None],
        calls_max: int,
        full_name: Callable[[str], str] = str,
    ) -> None:
        """`full_name` returns the full name of the tool that a program's `call` names."""
        self.calls = calls
        self._tools = tools
        self._full_name = full_name
        self._report = report
        self._calls_max = calls_max
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._suspended: Suspended | None = None
        self._errors: dict[str, JsonObject] = {}
        self._made: list[ProgramCall] = []
        self._changes: deque[CallChange] = deque()
        self._ended = 0

    @property
    def calls_so_far(self) -> tuple[ProgramCall, ...]:
        return tuple(self._made)

    def stop_reason(self) -> BaseException | None:
        return self._suspended

    def error_of(self, text: str) -> Mapping[str, Any]:
        own = {"tool": "", "callId": "", "kind": "", "message": text, "retryable": False, "details": {}}
        return self._errors.get(text, own)

    async def call(self, module: str, function: str, args: tuple[Any, ...], members: Mapping[str, Any]) -> Any:
        try:
            tool, taken = self._resolve_call(module, function, args, members)
            if len(self._made) >= self._calls_max:
                message = f"The program may make {self._calls_max} calls, and has made them. Answer with what it has."
                raise refuse(ErrorKind.BUDGET_EXCEEDED, message, max_tool_calls=self._calls_max)
        except ToolFailure as refused:
            raise self._call_failure(f"{module}.{function}" if module else function, "", refused.error) from refused
        return await self._invoke_in_place(tool, taken)

    def _resolve_call(
        self, module: str, function: str, args: tuple[Any, ...], members: Mapping[str, Any]
    ) -> tuple[str, JsonObject]:
        """Return the tool's full name and its arguments, given as one object or by name."""
        if not module and function == BUILT_IN_CALL:
            if not args or not isinstance(args[0], str):
                raise refuse(
                    ErrorKind.INVALID_INPUT, 'Name the tool: await call("core/fs.readText", {"path": "a.txt"}).'
                )
            tool = self._full_name(args[0])
            args = args[1:]
        else:
            tool = self._tools[FunctionName(module, function)]
        if len(args) > 1 or (args and not isinstance(args[0], Mapping)):
            message = f"{tool} takes its arguments by name, or as one object."
            raise refuse(ErrorKind.INVALID_INPUT, message)
        taken = plain({**(args[0] if args else {}), **members})
        assert isinstance(taken, dict)
        return tool, taken

    async def _invoke_in_place(self, tool: str, args: JsonObject) -> Any:
        place = len(self._made)
        # Its place is reserved at once, so that the list is in the order of the calls; it is CANCELLED until it has
        # ended.
        self._made.append(ProgramCall(tool=tool, call_id="", ok=False, kind=ErrorKind.CANCELLED.value))
        try:
            async with self._at_once:
                # It may have waited while another call suspended the program.
                if self._suspended is not None:
                    raise CallFailed("the program is suspended")
                self._report_progress(place, "STARTED")
                result = await self._invoke_tool(tool, args)
        except Suspended as suspended:
            # Stored here, as the interpreter does not pass exceptions of the host on unchanged.
            self._suspended = suspended
            raise CallFailed("the program is suspended") from suspended
        except asyncio.CancelledError:
            self._report_progress(place, "CANCELLED")
            raise
        self._note(place, result)
        if result.error is not None:
            raise self._call_failure(tool, result.call_id, result.error)
        return result.value

    async def _invoke_tool(self, tool: str, args: JsonObject) -> ToolResult:
        return await self.calls.invoke(tool, args, purpose=PURPOSE)

    def _note(self, place: int, result: ToolResult) -> None:
        kind = "" if result.error is None else result.error.kind.value
        tool = self._made[place].tool
        self._made[place] = ProgramCall(tool=tool, call_id=result.call_id, ok=result.ok, kind=kind)
        self._ended += 1
        self._report_progress(place, "SUCCEEDED" if result.ok else "FAILED")

    def _report_progress(self, place: int, state: CallState) -> None:
        made = self._made[place]
        kind = made.kind if state == "FAILED" else ""
        self._changes.append(CallChange(call=place + 1, tool=made.tool, state=state, call_id=made.call_id, kind=kind))
        while sum(len(change.tool) + _CHANGE_CHARS for change in self._changes) > _RECENT_CHARS:
            self._changes.popleft()
        shown = {"STARTED": "", "SUCCEEDED": ": ok", "FAILED": f": {kind}", "CANCELLED": ": cancelled"}[state]
        message = f"call {place + 1}: {made.tool}{shown}"
        self._report(ProgramProgress(step=self._ended, unit="calls", message=message, recent=tuple(self._changes)))

    def _call_failure(self, tool: str, call_id: str, error: ToolError) -> CallFailed:
        text = f"{error.kind.value}: {error.message}"
        shown: dict[str, Any] = {"tool": tool, "callId": call_id, "kind": error.kind.value, "message": error.message}
        shown["retryable"] = error.invites_retry
        shown["details"] = dict(error.details)
        if error.violations:
            shown["details"]["violations"] = [{"path": each.path, "message": each.message} for each in error.violations]
        # Keyed by its text, the only part of an exception that the program can pass to `error_of`.
        self._errors[text] = shown
        return CallFailed(text)


# Only JSON leaves a program, which may hold any other value, nested arbitrarily deep.


def plain(value: Any) -> JsonValue:
    """Return the value as JSON; tuples become arrays. Raises ToolFailure INVALID_INPUT for a value that JSON cannot
    hold."""
    return _Plain().of(value, 0)


class _Plain:
    def __init__(self) -> None:
        self._left = VALUES_MAX

    def of(self, value: Any, depth: int) -> JsonValue:
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_MAX:
            message = f"A value of the program has more than {VALUES_MAX:,} values in it or is nested too deep."
            raise refuse(ErrorKind.INVALID_INPUT, message, max_depth=_DEPTH_MAX)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int) and value.bit_length() <= _INTEGER_BITS_MAX:
            return value
        if isinstance(value, float) and isfinite(value):
            return value
        if isinstance(value, list | tuple):
            return [self.of(each, depth + 1) for each in value]
        if isinstance(value, dict):
            return self._object(value, depth)
        raise _no_json(value)

    def _object(self, value: Mapping[Any, Any], depth: int) -> JsonObject:
        members: dict[str, JsonValue] = {}
        for key, each in value.items():
            if not isinstance(key, str):
                raise _no_json(key)
            members[key] = self.of(each, depth + 1)
        return members


def _no_json(value: object) -> ToolFailure:
    name = type(value).__name__[:_TEXT_CHARS_MAX]
    message = (
        f"A value of the program is no JSON ({name}). Use text, numbers, booleans, None, lists and dictionaries with "
        "text as keys: sorted() makes a list of a set, str() text of a date."
    )
    return refuse(ErrorKind.INVALID_INPUT, message)
