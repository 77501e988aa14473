"""`toolhub run`: calls through a face, JSON in and JSON out: one request, or one a line until standard input ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import click
import grpc

from toolhub.v1 import call_pb2, result_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.call import command_context, request_id_option
from toolhub_service.cli.connection.client import Connection, address_options, connect_by_options, status_of
from toolhub_service.cli.connection.lost_answers import is_lost, lost_text
from toolhub_service.cli.terminal.output import EXIT_INTERRUPTED, EXIT_REFUSED, print_json_line
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.faces.countbot import NAME as COUNTBOT
from toolhub_service.faces.countbot import countbot
from toolhub_service.faces.local_tools import LOCAL_TOOLS
from toolhub_service.faces.table import FACE_HEADER, Face
from toolhub_service.schema import canonical_json, strict_json

# The longest time of any command that is called, plus the connection.
_ANSWER_TIMEOUT_S: Final = 630.0
# Of a line: the limit of a call's arguments and the rest of the request. A longer line is dropped unread.
_LINE_MAX_BYTES: Final = strict_json.MAX_BYTES
_SKIPPED_BYTES: Final = 64 * 1024
_MEMBERS: Final = ("tool", "args", "arguments")
_TOOL_NAME_MAX: Final = 256
_KINDS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: ErrorKind.INVALID_INPUT,
    grpc.StatusCode.UNAUTHENTICATED: ErrorKind.PERMISSION_DENIED,
    grpc.StatusCode.PERMISSION_DENIED: ErrorKind.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorKind.RATE_LIMITED,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorKind.TIMEOUT,
    grpc.StatusCode.UNAVAILABLE: ErrorKind.NETWORK_ERROR,
}
"""The face's code for a failed RPC."""


@click.command()
@click.argument("request", required=False)
@click.option(
    "--face",
    "face_name",
    type=click.Choice((LOCAL_TOOLS.name, COUNTBOT)),
    default=LOCAL_TOOLS.name,
    show_default=True,
    help="System whose tool names, arguments and answers are used.",
)
@request_id_option
@click.option("--purpose", default="", help="Reason for the calls, recorded in the audit log.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=_ANSWER_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for each answer.",
)
@address_options
def run(request: str | None, face_name: str, request_id: str, purpose: str, **options: Any) -> None:
    """Call tools under the names of local-tools or CountBot.

    REQUEST is one call; without it, each line of standard input is one.

    A request is {"tool": NAME, "args": {…}}. Each request, also an invalid one, gets one line of JSON as its answer.
    With REQUEST, exit code 1 means that the call failed; without it, the exit code is 0 at the end of standard input.

    \b
    Examples:
      toolhub run '{"tool": "FileRead", "args": {"path": "notes.txt", "user_id": "local"}}'
      toolhub run --face countbot '{"tool": "read_file", "args": {"path": "notes.txt"}}'
      toolhub run --face countbot > answers.jsonl
    """
    face = LOCAL_TOOLS if face_name == LOCAL_TOOLS.name else countbot()
    with connect_by_options(options) as connection:
        runner = _Runner(connection, face, request_id, purpose)
        try:
            if request is not None:
                if not runner.answer(request.encode("utf-8", "surrogateescape")):
                    sys.exit(EXIT_REFUSED)
                return
            for line in _lines(sys.stdin.buffer):
                runner.answer(line)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)


def _lines(source: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line that is not empty; None for one that is too long."""
    while line := source.readline(_LINE_MAX_BYTES + 2):
        is_whole = line.endswith(b"\n") or len(line) <= _LINE_MAX_BYTES
        rest = b"" if is_whole else line
        while rest and not rest.endswith(b"\n"):
            rest = source.readline(_SKIPPED_BYTES)
        if not is_whole:
            yield None
        elif line.strip():
            yield line


@dataclass(frozen=True, slots=True)
class _Runner:
    connection: Connection
    face: Face
    request_id: str
    purpose: str

    def answer(self, line: bytes | None) -> bool:
        """Print the answer to one request; return whether it succeeded."""
        name, result = "", result_pb2.ToolResult()
        try:
            name, args = _parse_line(line)
            result = self._call(name, args)
            value = json.loads(result.result_json or b"null")
        except ToolFailure as failure:
            value = self.face.fail(failure.error)
        except grpc.RpcError as error:
            code, message, reason = status_of(error)
            kind = _KINDS.get(code, ErrorKind.EXECUTION_ERROR)
            if is_lost(code, reason, error):
                kind = ErrorKind.OUTCOME_UNKNOWN
                happened = lost_text(self.connection.hub.address, code)
                message = f"{happened} The call may have had its effect: find out before you repeat it."
            value = self.face.fail(ToolError(kind, message, details={"reason": reason} if reason else {}))
        self._print(name, result, value)
        return result.ok

    def _call(self, name: str, args: JsonValue) -> result_pb2.ToolResult:
        request = pb.InvokeRequest(
            intent=call_pb2.ToolIntent(tool=name, args_json=canonical_json.dumps(args), purpose=self.purpose),
            context=command_context(self.request_id),
            result_encoding=call_pb2.RESULT_ENCODING_JSON,
        )
        metadata = (*self.connection.metadata, (FACE_HEADER, self.face.name))
        tools, timeout_s = self.connection.tools, self.connection.timeout_s
        return tools.Invoke(request, timeout=timeout_s, metadata=metadata).result

    def _print(self, name: str, result: result_pb2.ToolResult, value: Any) -> None:
        if self.face.name == COUNTBOT:
            value = {
                "call_id": result.call_id,
                "tool_name": name,
                "status": "success" if result.ok else "error",
                "duration_ms": sum(step.duration_us for step in result.durations) // 1_000,
                "result": value,
            }
        print_json_line(value)


def _parse_line(line: bytes | None) -> tuple[str, JsonValue]:
    """Return (the face's tool, its arguments, which the hub validates). Raises ToolFailure INVALID_INPUT."""
    if line is None:
        raise _invalid(f"The line has more than {_LINE_MAX_BYTES:,} bytes. Send large content as an artifact.")
    request = strict_json.loads(line)
    if not isinstance(request, Mapping):
        raise _invalid('A request is a JSON object: {"tool": NAME, "args": {…}}.')
    unknown = [name for name in request if name not in _MEMBERS]
    if unknown:
        raise _invalid(f"A request has no member {unknown[0][:100]!r}: put arguments into `args`.")
    name = request.get("tool")
    if not isinstance(name, str) or not 0 < len(name) <= _TOOL_NAME_MAX:
        raise _invalid(f"`tool` must be the name of a tool, of at most {_TOOL_NAME_MAX} characters.")
    if "args" in request and "arguments" in request:
        raise _invalid("`args` and `arguments` are the same: send one of them.")
    return name, request.get("args", request.get("arguments", {}))


def _invalid(message: str) -> ToolFailure:
    return refuse(ErrorKind.INVALID_INPUT, message)
