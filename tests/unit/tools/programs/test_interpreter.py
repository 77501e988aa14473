"""An interpreter of programs that does not start is not blamed on the program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.ladders import ladder_of
from tests.missing import need_extra
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.tools.programs import interpreter
from toolhub_service.tools.programs.bounds import Printed, ProgramLimits
from toolhub_service.tools.programs.interpreter import Interpreter, Program

need_extra("pydantic_monty", "programs")


class NoCalls:
    def stop_reason(self) -> BaseException | None:
        return None

    async def call(self, module: str, function: str, args: tuple[Any, ...], members: Mapping[str, Any]) -> Any:
        raise AssertionError("the program makes no calls")

    def error_of(self, text: str) -> Mapping[str, Any]:
        return {}


async def value_of(program: Interpreter, code: str) -> Any:
    text = Program(code, {}, {}, {}, "", 0, "seed", is_checked=False)
    deadline_s = asyncio.get_running_loop().time() + 60
    return (await program.run(text, NoCalls(), Printed(1_000), deadline_s)).value


@pytest.mark.parametrize("binary", ["/bin/false", "/bin/true", "/bin/echo"])
async def test_a_worker_that_cannot_start_is_the_machines_fault(binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: "The program ended its interpreter, which is replaced. Do less at once"."""
    ladder = await ladder_of("landlock")
    monkeypatch.setattr(interpreter, "_binary", lambda: binary)
    made = Interpreter(ProgramLimits(), ladder)
    try:
        with pytest.raises(ToolFailure) as refused:
            await value_of(made, "1 + 1")
    finally:
        await made.close()
    assert refused.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert "does not start on the hub's machine" in refused.value.error.message
    assert not refused.value.error.retryable


async def test_a_worker_that_starts_runs_programs(tmp_path: Path) -> None:
    made = Interpreter(ProgramLimits(), await ladder_of("landlock", tmp_path))
    try:
        assert await value_of(made, "1 + 1") == 2
    finally:
        await made.close()
