"""How core/exec.run tells what a command did: its output, its evidence, and why it had to be ended."""

from __future__ import annotations

from toolhub_service.domain.errors import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.guards.command_grammar import JudgedCommand
from toolhub_service.tools.confinement import Level
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.process import FLOOD_BYTES, Capture, Finished

_EXCERPT_CHARS = 2000


def prove(finished: Finished, judged: JudgedCommand, level: Level, context: ToolContext) -> None:
    """Lay down what ran, how it ended and what confined it."""
    context.proves(
        EvidenceType.TOOL,
        f"exec:{judged.rule}",
        f"Ran {judged.binary}: exit code {finished.exit_code}, {finished.stdout.total_bytes} bytes of output.",
        sha256=finished.stdout.sha256,
        confinement=level,
        exit_code=str(finished.exit_code),
        duration_ms=str(round(finished.duration_s * 1000)),
    )


def not_ended(finished: Finished, judged: JudgedCommand, timeout_s: float, stdout: str, stderr: str) -> ToolFailure:
    """For a command that had to be ended; `timeout_s` is what the arguments gave it."""
    seconds = round(finished.duration_s, 1)
    # The clock of the arguments starts a moment before that of the process.
    was_own_limit = finished.duration_s > 0.95 * timeout_s
    more_time = "a longer timeoutS" if was_own_limit else "call with a later deadline"
    message = (
        f"{judged.rule} wrote more than {FLOOD_BYTES} bytes and was ended. Ask it for less."
        if finished.flooded
        else f"{judged.rule} did not end within {seconds} s and was stopped with all that it started. What it did "
        f"until then stays done: look before you repeat it, give it less to do, or {more_time}."
    )
    return refuse(
        ErrorKind.EXECUTION_ERROR if finished.flooded else ErrorKind.TIMEOUT,
        message,
        command=judged.rule,
        duration_s=seconds,
        stdout=stdout[:_EXCERPT_CHARS],
        stderr=stderr[:_EXCERPT_CHARS],
    )


def told(capture: Capture, max_chars: int) -> tuple[str, bool]:
    """A stream as the caller sees it, with a mark where it was cut, and whether it was."""
    text, cut = capture.text(max_chars)
    return (f"{text}\n…[cut: {capture.total_bytes} bytes in all]", True) if cut else (text, False)
