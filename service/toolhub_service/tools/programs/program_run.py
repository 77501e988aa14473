"""core/program.run: a program in place of many calls; its intermediate results do not reach the model.

It can do no more than its caller: each function of a program is an inner call of the hub. As a job it is durable: its
calls are stored in the run's log, and a run that was interrupted, or waited for a person, starts again with the stored
answers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property, partial
from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Clock, InnerCalls
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, CostHints, Example, ToolLimits, ToolSpec
from toolhub_service.registry.export.exported_names import tools_by_exported_name
from toolhub_service.registry.export.stubs import (
    BUILT_IN,
    PYTHON_HEAD,
    FunctionName,
    module_name,
    python_modules,
    revision_of,
    short_name,
    tools_by_name,
    words_of,
)
from toolhub_service.sandbox.request import too_weak, wanted_level
from toolhub_service.schema.canonical_json import NotJson, dumps
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.programs.bounds import Printed
from toolhub_service.tools.programs.foresight import ForeseenCalls, Unforeseeable
from toolhub_service.tools.programs.interpreter import VERSION, Interpreter, Program
from toolhub_service.tools.programs.program_calls import ProgramCall, ProgramCalls, ProgramProgress, plain
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

NAME: Final = "core/program.run"
CALLS_MAX: Final = 1_000
_TOOLS_MAX: Final = 128
_CODE_CHARS: Final = 1024 * 1024
_EVIDENCE_CHARS: Final = 1_000
_OF_CALL_ID: Final = re.compile(r"call_([0-9a-f]{12})[0-9a-f]{16}")
_UNKNOWN_TIME_MS: Final = 946_684_800_000
"""2000-01-01, for a job whose call was named by its caller: any time works that is the same in each of its runs."""


class ProgramText(msgspec.Struct, frozen=True):
    """The program, whoever runs it."""

    code: str
    inputs: JsonObject
    tools: Sequence[str] | None
    """Full names or globs; None: all that the caller may call."""
    max_calls: int
    is_checked: bool = True


class ProgramEnded(msgspec.Struct, frozen=True):
    value: JsonValue
    printed: str
    is_printed_cut: bool
    calls: tuple[ProgramCall, ...]


@dataclass(frozen=True)
class Prepared:
    program: Program
    calls: InnerCalls
    names: Mapping[FunctionName, str]
    offered: Sequence[ToolSpec]
    named: Sequence[ToolSpec]

    def full_name(self, text: str) -> str:
        """Return the full name of a tool that `call` names by its own name or by the name in a model interface."""
        return text if "/" in text else self._names_for_code.get(text, text)

    @cached_property
    def _names_for_code(self) -> Mapping[str, str]:
        return tools_by_exported_name(spec.name for spec in self.offered)


async def prepare_program(
    interpreter: Interpreter, text: ProgramText, context: ToolContext[Any], now_unix_ms: Callable[[], int]
) -> Prepared:
    """Check and prepare a program. Raises ToolFailure INVALID_INPUT for a program that is too long or names no tool of
    the caller's, BUDGET_EXCEEDED for calls nested too deeply, and TOOL_UNAVAILABLE where policy demands a better
    sandbox."""
    tool = context.call.tool if context.call else ProgramRun.name
    if refusal := too_weak(tool, await interpreter.level(), wanted_level(tool, context.constraints.sandbox)):
        raise refusal
    _check_length(text.code, interpreter.limits.code_bytes)
    offered = await _tools_for_program(_inner_calls(context), text.tools)
    # Durable: a program that runs again after a restart gets the answers of its earlier calls.
    calls = _inner_calls(context).restrict_to((spec.name for spec in offered), text.max_calls).durable()
    words = words_of(text.code)
    names = tools_by_name([spec.name for spec in offered], words)
    named = _tools_named_in_text(offered, names)
    modules = _modules(offered, names, words)
    program = Program(
        code=text.code,
        inputs=text.inputs,
        modules=modules,
        stubs=dict.fromkeys(modules, PYTHON_HEAD) | python_modules(named),
        built_in=PYTHON_HEAD + BUILT_IN,
        now_unix_ms=_began_unix_ms(context, now_unix_ms),
        # A job keeps its id when it runs again, a call gets a new one.
        seed=(context.call.job_id if context.call else "") or context.call_id,
        is_checked=text.is_checked,
        near=partial(_near, [spec.name for spec in offered]),
    )
    return Prepared(program, calls, names, offered, [spec for spec, _ in named])


async def run_program(
    interpreter: Interpreter,
    text: ProgramText,
    context: ToolContext[Any],
    now_unix_ms: Callable[[], int],
    report: Callable[[ProgramProgress], None],
) -> ProgramEnded:
    """Run it with the calls of the running call; evidence is added however it ends.

    Raises ToolFailure as `prepare_program` and `Interpreter.run`, and lets `Suspended` through.
    """
    ready = await prepare_program(interpreter, text, context, now_unix_ms)
    host = ProgramCalls(ready.calls, ready.names, report, text.max_calls, ready.full_name)
    printed = Printed(interpreter.limits.printed_bytes)
    try:
        ended = await interpreter.run(ready.program, host, printed, context.deadline_s, ready.calls.depth)
        return ProgramEnded(plain(ended.value), printed.text, printed.is_cut, host.calls_so_far)
    finally:
        _lay_evidence(context, text, ready.named, interpreter, host.calls_so_far, printed)


async def foreseen_program(
    interpreter: Interpreter, text: ProgramText, context: ToolContext[Any], now_unix_ms: Callable[[], int]
) -> Sequence[str]:
    """Return what it would call, for a dry run. Raises ToolFailure when it would fail before anything is unknown."""
    ready = await prepare_program(interpreter, text, context, now_unix_ms)
    specs = {spec.name: spec for spec in ready.offered}
    host = ForeseenCalls(ready.calls, ready.names, specs, lambda _: None, text.max_calls, ready.full_name)
    try:
        await interpreter.run(ready.program, host, Printed(0), context.deadline_s, ready.calls.depth)
    except Unforeseeable:
        return host.lines(None)
    except ToolFailure as failure:
        return host.lines(failure)
    return host.lines(None)


class ProgramRun(Tool["ProgramRun.In", "ProgramRun.Out", ProgramProgress]):
    name = NAME
    description = (
        "Run a short Python program that calls your tools, in place of many calls: what it reads on the way stays out "
        "of your sight, and only the value of its last expression and what it prints come back. Each tool is an async "
        "function: core/fs.readText is `await core.fs_readText(path='a.txt')`, any tool "
        "`await call('core/fs.readText', {'path': 'a.txt'})`; asyncio.gather runs calls beside each other. A failing "
        "tool raises RuntimeError, error_of(e) gives its kind and details. `inputs` holds what you pass. A subset of "
        "Python without files, network, clock or other modules than json, re, math, datetime and a few more; no "
        "inheritance of classes."
    )
    tags = ("program", "code", "script", "python", "batch")
    annotations = Annotations(open_world=True, supports_progress=True)
    cost = CostHints(latency_ms_p50=50, latency_ms_p95=30_000)
    limits = ToolLimits(timeout_s=120.0)
    replays = True
    examples = (
        Example(
            "Count the lines of two files",
            {
                "code": "import asyncio, core\n"
                "texts = await asyncio.gather(*[core.fs_readText(path=p) for p in inputs['paths']])\n"
                "sum(len(t['text'].splitlines()) for t in texts)",
                "inputs": {"paths": ["a.txt", "b.txt"]},
            },
        ),
    )

    class In(ToolInput, frozen=True):
        code: Annotated[str, Meta(description="The program.", min_length=1, max_length=_CODE_CHARS)]
        inputs: Annotated[dict[str, Any], Meta(description="Values that the program reads as `inputs`.")] = field(
            default_factory=dict
        )
        tools: (
            Annotated[
                tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...],
                Meta(
                    description="Names or globs of your tools that it may call; left out: all.", max_length=_TOOLS_MAX
                ),
            ]
            | None
        ) = None
        max_calls: (
            Annotated[int, Meta(description="Calls at most, no more than the hub allows.", ge=0, le=CALLS_MAX)] | None
        ) = None
        check: Annotated[
            bool, Meta(description="Whether types are checked against the tools before anything runs.")
        ] = True

    class Out(ToolOutput, frozen=True):
        value: Annotated[Any, Meta(description="Of the last expression; null where it is an artifact.")]
        printed: str
        calls: Annotated[tuple[ProgramCall, ...], Meta(description="As the hub made them, in the order of asking.")]
        printed_cut: Annotated[bool, Meta(description="Whether more was printed than is shown.")] = False
        value_artifact: Annotated[
            str | UnsetType, Meta(description="Id of an artifact with the value as JSON, which is too large to show.")
        ] = UNSET

    def __init__(self, interpreter: Interpreter, clock: Clock) -> None:
        self._interpreter = interpreter
        self._clock = clock

    def unavailable_reason(self) -> str:
        return self._interpreter.unavailable_reason()

    async def foresee(self, args: In, context: ToolContext) -> Sequence[str]:
        return await foreseen_program(self._interpreter, self._text(args), context, self._clock.unix_ms)

    async def run(self, args: In, context: ToolContext[ProgramProgress]) -> Out:
        limits = self._interpreter.limits
        text = self._text(args)
        ended = await run_program(self._interpreter, text, context, self._clock.unix_ms, context.report)
        value, artifact = await _value_or_artifact(ended.value, limits.result_bytes, context)
        return self.Out(
            value=value,
            printed=ended.printed,
            calls=ended.calls,
            printed_cut=ended.is_printed_cut,
            value_artifact=artifact or UNSET,
        )

    def _text(self, args: In) -> ProgramText:
        most = self._interpreter.limits.calls_max
        asked = most if args.max_calls is None else min(args.max_calls, most)
        return ProgramText(args.code, args.inputs, args.tools, asked, args.check)


def _inner_calls(context: ToolContext[Any]) -> InnerCalls:
    if context.calls is None:
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, "No calls can be made from here.", retryable=False)
    return context.calls()


def _check_length(code: str, max_bytes: int) -> None:
    if len(code.encode("utf-8", "surrogatepass")) > max_bytes:
        message = f"The program is longer than {max_bytes:,} bytes. Pass data in `inputs` or read it with a tool."
        raise refuse(ErrorKind.INVALID_INPUT, message, field="code", max_bytes=max_bytes)


async def _tools_for_program(calls: InnerCalls, patterns: Sequence[str] | None) -> Sequence[ToolSpec]:
    """Return the tools that a program may call, without core/program.run: no program runs programs."""
    if patterns is None:
        return await calls.offered_tools(lambda spec: spec.name != NAME)
    all_offered = await calls.offered_tools(lambda spec: spec.name != NAME)
    if any("/" not in text for text in patterns):
        exported = tools_by_exported_name(spec.name for spec in all_offered)
        patterns = [exported.get(text, text) for text in patterns]
    found = [spec for spec in all_offered if any(fnmatchcase(spec.name, text) for text in patterns)]
    if unknown := [text for text in patterns if not any(fnmatchcase(spec.name, text) for spec in found)]:
        message = (
            f"You have no tool named {', '.join(unknown[:5])} that a program may call. Name tools that you may call, "
            "or globs of them."
        )
        raise refuse(ErrorKind.INVALID_INPUT, message, field="tools")
    return found


def _tools_named_in_text(
    offered: Sequence[ToolSpec], names: Mapping[FunctionName, str]
) -> list[tuple[ToolSpec, FunctionName]]:
    """Return the tools that the text names, once for each name."""
    specs = {spec.name: spec for spec in offered}
    return [(specs[tool], name) for name, tool in sorted(names.items())]


def _modules(
    offered: Sequence[ToolSpec], names: Mapping[FunctionName, str], words: Collection[str]
) -> dict[str, list[str]]:
    """Return each module that the text names, with the functions that it names, so that thousands need not be
    passed."""
    modules: dict[str, list[str]] = {module_name(spec.name): [] for spec in offered}
    for name in sorted(names):
        modules[name.module].append(name.function)
    return {module: functions for module, functions in modules.items() if module in words}


def _near(tools: Sequence[str], name: str) -> str:
    found = get_close_matches(name, [str(short_name(tool)) for tool in tools], n=1)
    return found[0] if found else ""


def _began_unix_ms(context: ToolContext[Any], now_unix_ms: Callable[[], int]) -> int:
    """Return the same time in each run of a job."""
    if context.call is None or not context.call.job_id:
        return now_unix_ms()
    named = _OF_CALL_ID.fullmatch(context.call_id)
    return min(int(named[1], 16), 4 * 10**12) if named else _UNKNOWN_TIME_MS


def _lay_evidence(
    context: ToolContext[Any],
    text: ProgramText,
    named: Sequence[ToolSpec],
    interpreter: Interpreter,
    made: Sequence[ProgramCall],
    printed: Printed,
) -> None:
    limits = interpreter.limits
    failed = sum(not call.ok for call in made)
    context.proves(
        EvidenceType.TOOL,
        context.call_id,
        f"a program made {len(made)} calls, of which {failed} failed",
        sha256=sha256(text.code.encode("utf-8", "surrogatepass")).hexdigest(),
        interpreter=VERSION,
        confinement=interpreter.sandbox or "",
        stubs_revision=revision_of(named),
        limits=f"{limits.memory_bytes} bytes, {limits.cpu_s:g} s CPU, {limits.wall_s:g} s, {text.max_calls} calls",
        calls=" ".join(call.call_id for call in made if call.call_id),
        printed=printed.text[:_EVIDENCE_CHARS],
    )


async def _value_or_artifact(value: JsonValue, max_bytes: int, context: ToolContext[Any]) -> tuple[JsonValue, str]:
    """Return the value, or the id of the artifact that holds it."""
    try:
        data = dumps(value)
    except NotJson as odd:
        raise refuse(ErrorKind.INVALID_INPUT, f"The value of the program is no JSON: {odd}.") from odd
    if len(data) <= max_bytes:
        return value, ""
    kept = await context.keep(_chunks(data), media_type="application/json", name="value.json")
    if kept is None:
        message = f"The value takes {len(data):,} bytes, and {max_bytes:,} can be answered. Return less."
        raise refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=max_bytes)
    return None, kept.artifact_id


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 64 * 1024):
        yield data[start : start + 64 * 1024]
