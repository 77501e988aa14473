"""A dry run of a program: the calls that it would make, as far as they can be known without any effect.

The program runs. A call of a tool that only reads is made; any other is only planned, and the program gets a
placeholder as its answer. When it inspects a placeholder, or passes it to a call, the dry run ends, because the rest is
unknown. A placeholder is true, as an answer that is an object would be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import Plan, ToolResult
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.export.stubs import FunctionName
from toolhub_service.schema.canonical_json import NotJson, dumps
from toolhub_service.tools.programs.interpreter import UnknownAnswer, unknown_answer
from toolhub_service.tools.programs.program_calls import PURPOSE, CallFailed, ProgramCalls, ProgramProgress

_ARGS_CHARS: Final = 200
_LINES_MAX: Final = 100
_END: Final = "It would call nothing else."
_UNKNOWN: Final = "What it would do from here on depends on an answer that is not known before the call is made."


class Unforeseeable(Exception):
    """The program inspects an unknown answer."""


class ForeseenCalls(ProgramCalls):
    """Implements `Host` for a dry run; `lines` returns what it shows."""

    def __init__(
        self,
        calls: InnerCalls,
        tools: Mapping[FunctionName, str],
        specs: Mapping[str, ToolSpec],
        report: Callable[[ProgramProgress], None],
        calls_max: int,
        full_name: Callable[[str], str] = str,
    ) -> None:
        super().__init__(calls, tools, report, calls_max, full_name)
        self._specs = specs
        self._is_over = False
        self._lines: list[str] = []

    def stop_reason(self) -> BaseException | None:
        return Unforeseeable() if self._is_over else super().stop_reason()

    async def call(self, module: str, function: str, args: tuple[Any, ...], members: Mapping[str, Any]) -> Any:
        if _holds_unknown((args, dict(members)), 0):
            # What a program does with an unknown answer cannot be foreseen, so the dry run ends here.
            self._is_over = True
            raise CallFailed("the dry run is over")
        return await super().call(module, function, args, members)

    async def _invoke_tool(self, tool: str, args: JsonObject) -> ToolResult:
        spec = self._specs.get(tool)
        shown = f"{tool} {_args_as_text(args)}"
        if spec is not None and spec.annotations.read_only:
            result = await self.calls.invoke(tool, args, purpose=PURPOSE)
            self._lines.append(f"Call {shown}, which only reads and was called for this plan.")
            return result
        plan = await self.calls.plan(tool, args, purpose=PURPOSE)
        if not isinstance(plan, Plan):
            kind = ErrorKind.INTERNAL.value if plan.error is None else plan.error.kind.value
            self._lines.append(f"Call {shown}, which would be refused: {kind}.")
            return plan
        self._lines.append(" ".join([f"Call {shown}.", *plan.effects]))
        return ToolResult(ok=True, call_id=plan.call_id, tool=tool, value=unknown_answer())

    def lines(self, failure: ToolFailure | None) -> Sequence[str]:
        """Return the lines of the dry run. Raises the failure when it is the program's own."""
        is_unknown = self._is_over or (failure is not None and UnknownAnswer.__name__ in failure.error.message)
        if failure is not None and not is_unknown:
            raise failure
        shown = self._lines[:_LINES_MAX]
        if len(self._lines) > _LINES_MAX:
            shown.append(f"Make {len(self._lines) - _LINES_MAX} calls more.")
        return (*shown, _UNKNOWN if is_unknown else _END)


def _args_as_text(args: JsonObject) -> str:
    try:
        text = dumps(args).decode()
    except NotJson:
        return "with arguments that are no JSON"
    return text if len(text) <= _ARGS_CHARS else f"{text[:_ARGS_CHARS]}…"


def _holds_unknown(value: Any, depth: int) -> bool:
    if isinstance(value, UnknownAnswer):
        return True
    # A program may have formatted it into a text (an f-string), where only the name of its class is left.
    if isinstance(value, str):
        return UnknownAnswer.__name__ in value
    # A value may contain itself.
    if depth > _ARGS_CHARS:
        return False
    if isinstance(value, dict):
        return any(_holds_unknown(each, depth + 1) for each in value.values())
    return isinstance(value, list | tuple | set) and any(_holds_unknown(each, depth + 1) for each in value)
