"""What calls typed by hand say of themselves."""

from __future__ import annotations

import secrets

from toolhub.v1 import call_pb2

_SIZE_BYTES = 6


def typed_context(request_id: str) -> call_pb2.ExecContext:
    """`request_id` names the workspace, which all share. Each command is a task of its own: the same words typed again
    are meant again, so a key that the hub derives (tools of kind n8n) must not answer them with the first result."""
    return call_pb2.ExecContext(request_id=request_id, task_id=f"cli-{secrets.token_hex(_SIZE_BYTES)}")
