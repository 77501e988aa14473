"""Calls typed by hand: their context, and Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest

from tests.e2e.terminal import BIN, environment, terminal
from toolhub.v1 import progress_pb2, tool_service_pb2, tool_service_pb2_grpc
from toolhub_service.cli.call import command_context


def test_the_same_words_typed_again_are_a_task_of_their_own_in_the_same_workspace() -> None:
    first, second = command_context("cli"), command_context("cli")
    assert first.request_id == second.request_id == "cli"
    assert first.task_id
    assert first.task_id != second.task_id


class NeverDone(tool_service_pb2_grpc.ToolServiceServicer):
    """Answers a call with a piece of output, and then with nothing more."""

    def __init__(self, call_id: str) -> None:
        """`call_id`: empty as of a hub that does not send it."""
        self.call_id = call_id
        self.cancelled = Event()
        self.task_id = ""

    def InvokeStream(self, request: Any, context: Any) -> Iterator[tool_service_pb2.InvokeStreamResponse]:
        self.task_id = request.context.task_id
        context.add_callback(self.cancelled.set)
        if self.call_id:
            context.send_initial_metadata((("toolhub-call-id", self.call_id),))
        yield tool_service_pb2.InvokeStreamResponse(chunk=progress_pb2.Chunk(stream="stdout", data=b"begun\n"))
        self.cancelled.wait(60)


@pytest.mark.promise("cli.interrupt")
@pytest.mark.parametrize("call_id", ["call_0123456789abcdef", ""])
def test_ctrl_c_cancels_the_call_and_prints_how_to_see_its_effects(tmp_path: Path, call_id: str) -> None:
    servicer = NeverDone(call_id)  # type: ignore[abstract]  # only what it is asked for
    server = grpc.server(ThreadPoolExecutor(2))
    tool_service_pb2_grpc.add_ToolServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        env = environment(tmp_path, TOOLHUB_ADDRESS=address)
        with terminal([str(BIN / "toolhub"), "call", "a/b"], env) as (process, screen):
            screen.wait_for("begun")
            screen.type(b"\x03")
            text = screen.rest()
            assert process.wait(60) == 130
        assert servicer.cancelled.wait(60)
    finally:
        server.stop(None)
    assert f"The hub cancels {call_id or 'the call'};" in text
    where = f"--call-id {call_id}" if call_id else f"--task-id {servicer.task_id}"
    assert f"\ntoolhub audit tail {where}\n" in text
    assert "Traceback" not in text
