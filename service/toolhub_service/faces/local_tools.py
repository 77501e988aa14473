"""The face `local-tools`: six tools that take `user_id` and answer `{"success": …}` with one of eight codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.faces.table import USER, Argument, Face, FaceTool
from toolhub_service.schema import strict_json

NAME: Final = "local-tools"

# Of a body that is read on the event loop; a longer one stays text.
_BODY_MAX_BYTES: Final = 256 * 1024

CODES: Final[Mapping[ErrorKind, str]] = {
    ErrorKind.TOOL_NOT_FOUND: "NOT_FOUND",
    ErrorKind.TOOL_QUARANTINED: "PERMISSION_DENIED",
    ErrorKind.TOOL_UNAVAILABLE: "EXECUTION_ERROR",
    ErrorKind.INPUT_SCHEMA_INVALID: "INVALID_INPUT",
    ErrorKind.INVALID_INPUT: "INVALID_INPUT",
    ErrorKind.POLICY_DENIED: "PERMISSION_DENIED",
    ErrorKind.PERMISSION_DENIED: "PERMISSION_DENIED",
    ErrorKind.APPROVAL_REQUIRED: "PERMISSION_DENIED",
    ErrorKind.APPROVAL_REJECTED: "PERMISSION_DENIED",
    ErrorKind.PLAN_REQUIRED: "PERMISSION_DENIED",
    ErrorKind.PATH_OUTSIDE_SANDBOX: "INVALID_INPUT",
    ErrorKind.NOT_FOUND: "NOT_FOUND",
    ErrorKind.ALREADY_EXISTS: "ALREADY_EXISTS",
    ErrorKind.FILE_TOO_LARGE: "IO_ERROR",
    ErrorKind.HTTP_DISALLOWED_HOST: "PERMISSION_DENIED",
    ErrorKind.HTTP_TIMEOUT: "TIMEOUT",
    ErrorKind.HTTP_TOO_LARGE: "NETWORK_ERROR",
    ErrorKind.NETWORK_ERROR: "NETWORK_ERROR",
    ErrorKind.IO_ERROR: "IO_ERROR",
    ErrorKind.EXECUTION_ERROR: "EXECUTION_ERROR",
    ErrorKind.BUDGET_EXCEEDED: "EXECUTION_ERROR",
    ErrorKind.RATE_LIMITED: "EXECUTION_ERROR",
    ErrorKind.CIRCUIT_OPEN: "NETWORK_ERROR",
    ErrorKind.TIMEOUT: "TIMEOUT",
    ErrorKind.CANCELLED: "EXECUTION_ERROR",
    ErrorKind.UPSTREAM_ERROR: "NETWORK_ERROR",
    ErrorKind.OUTPUT_SCHEMA_INVALID: "EXECUTION_ERROR",
    ErrorKind.IDEMPOTENCY_CONFLICT: "EXECUTION_ERROR",
    ErrorKind.OUTCOME_UNKNOWN: "EXECUTION_ERROR",
    ErrorKind.INTERNAL: "EXECUTION_ERROR",
    ErrorKind.TOOL_CHANGED: "EXECUTION_ERROR",
}
"""The code of each kind; of OUTCOME_UNKNOWN after a timeout, TIMEOUT."""

_TIMEOUTS: Final = frozenset({ErrorKind.TIMEOUT.value, ErrorKind.HTTP_TIMEOUT.value})


def code_of(error: ToolError) -> str:
    """One of the eight codes."""
    if error.kind is ErrorKind.OUTCOME_UNKNOWN and error.details.get("cause") in _TIMEOUTS:
        return "TIMEOUT"
    # A kind that is newer than the table still has to end in one of the eight codes.
    return CODES.get(error.kind, "EXECUTION_ERROR")


def _succeed(output: JsonValue) -> JsonValue:
    return {"success": True, "output": output}


def _fail(error: ToolError) -> JsonValue:
    details: dict[str, JsonValue] = {**error.details, "kind": error.kind.value, "retryable": error.invites_retry}
    if error.invited_after_s is not None:
        details["retry_after_s"] = error.invited_after_s
    if error.violations:
        details["violations"] = [
            {"path": each.path, "message": each.message, "hint": each.hint} for each in error.violations
        ]
    if error.upstream is not None:
        details["upstream"] = {"status": error.upstream.status, "excerpt": error.upstream.excerpt}
    return {
        "success": False,
        "error": {"error_code": code_of(error), "message": error.message, "details": details},
    }


# Answers. What was cut says so, for what is missing must not look like the end.


def _file_read(value: Mapping[str, Any]) -> JsonValue:
    """`content` ← `text`; of a file that was cut also `truncated`."""
    return {"content": value["text"], **_cut(value)}


def _file_write(value: Mapping[str, Any]) -> JsonValue:
    """`path`."""
    return {"path": value["path"]}


def _file_delete(value: Mapping[str, Any]) -> JsonValue:
    """`deleted`, `files`, `folders`."""
    return {name: value[name] for name in ("deleted", "files", "folders")}


def _list_directory(value: Mapping[str, Any]) -> JsonValue:
    """`entries` of `name`, `type` (`dir` → `directory`), `size`, `last_modified` ← `modifiedAt`; if cut `truncated`."""
    entries: list[JsonValue] = [
        {
            "name": entry["name"],
            "type": "directory" if entry["type"] == "dir" else entry["type"],
            "size": entry["size"],
            "last_modified": entry["modifiedAt"],
        }
        for entry in value["entries"]
        if isinstance(entry, Mapping)  # the last of a list that was cut is a text
    ]
    return {"entries": entries, **_cut(value)}


def _execute_command(value: Mapping[str, Any]) -> JsonValue:
    """`stdout`, `stderr`, `exit_code` ← `exitCode`, which may be other than 0; if cut `truncated`."""
    return {
        "stdout": value["stdout"],
        "stderr": value["stderr"],
        "exit_code": value["exitCode"],
        **_cut(value),
    }


def _http_request(value: Mapping[str, Any]) -> JsonValue:
    """`status_code` ← `status`, `headers`, `body`: a value where it is JSON, else text; if cut `truncated`."""
    body = value["body"]
    return {
        "status_code": value["status"],
        "headers": value["headers"],
        "body": body if value.get("truncated") else _json_or_text(body),
        **_cut(value),
    }


def _json_or_text(body: str) -> JsonValue:
    data = body.encode()
    # An empty body is no JSON, and its absence is no error of the server.
    if not body.lstrip()[:1] or len(data) > _BODY_MAX_BYTES:
        return body
    try:
        return strict_json.loads(data)
    except ToolFailure:
        return body


def _cut(value: Mapping[str, Any]) -> dict[str, JsonValue]:
    return {"truncated": True} if value.get("truncated") else {}


_STRING: Final = {"type": "string"}
_USER_ID: Final = Argument(USER, {"type": "string", "description": "For whom; the policy decides."}, required=True)
_PATH: Final = Argument("path", {"type": "string", "description": "Relative to the workspace."}, required=True)
_ENCODING: Final = Argument("encoding", {"type": "string", "default": "utf-8"})

_ROWS: Final = (
    FaceTool(
        "FileRead",
        "core/fs.readText",
        {"path": _PATH, "encoding": _ENCODING, "user_id": _USER_ID},
        _file_read,
        description="Read a text file of the workspace.",
    ),
    FaceTool(
        "FileWrite",
        "core/fs.writeText",
        {
            "path": _PATH,
            "content": Argument("text", _STRING, required=True),
            "encoding": _ENCODING,
            "overwrite": Argument("overwrite", {"type": "boolean", "default": False}),
            "user_id": _USER_ID,
        },
        _file_write,
        description="Write a text file of the workspace; overwrite replaces one that exists.",
    ),
    FaceTool(
        "FileDelete",
        "core/fs.deletePath",
        {
            "path": _PATH,
            "recursive": Argument("recursive", {"type": "boolean", "default": False}),
            "user_id": _USER_ID,
        },
        _file_delete,
        # The tool of old asked for no confirmation; policy still wants a plan, unless a rule lets the call pass.
        fixed={"confirm": True},
        description="Delete a file or an empty folder of the workspace, with recursive a folder and all in it.",
    ),
    FaceTool(
        "ListDirectory",
        "core/fs.listDir",
        {
            "path": _PATH,
            "include_hidden": Argument("includeHidden", {"type": "boolean", "default": False}),
            "user_id": _USER_ID,
        },
        _list_directory,
        description="List a folder of the workspace: name, type, size and time of change of each entry.",
    ),
    FaceTool(
        "ExecuteCommand",
        "core/exec.run",
        {
            "cmd": Argument("command", {"type": "string", "description": "One command, without a shell."}, True),
            "cwd": Argument("cwd", _STRING),
            "timeout": Argument("timeoutS", {"type": "number", "description": "Seconds.", "default": 60}, default=60),
            "env": Argument("env", {"type": "object", "additionalProperties": _STRING}),
            "user_id": _USER_ID,
        },
        _execute_command,
        description="Run one allowed command in the workspace, without a shell.",
    ),
    FaceTool(
        "HTTPRequest",
        "core/http.request",
        {
            "url": Argument("url", _STRING, required=True),
            "method": Argument(
                "method", {"type": "string", "enum": ["GET", "POST", "PUT", "DELETE", "PATCH"], "default": "GET"}
            ),
            "headers": Argument("headers", {"type": "object", "additionalProperties": _STRING}),
            "body": Argument("body", {"type": ["string", "object"]}),
            "timeout": Argument(
                "timeoutMs", {"type": "number", "description": "Seconds.", "default": 30}, default=30, scale=1_000
            ),
            "user_id": _USER_ID,
        },
        _http_request,
        description="Send an HTTP request to an allowed host; any status is an answer.",
    ),
)

LOCAL_TOOLS: Final = Face(
    NAME,
    "The tools of `local-tools`: JSON in, JSON out, eight codes.",
    {row.name: row for row in _ROWS},
    _succeed,
    _fail,
)
