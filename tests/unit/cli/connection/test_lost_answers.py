"""Each command that changes something, and whose hub stops after it got the request, says how to find out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.command_server import run
from tests.e2e.terminal import environment
from tests.unit.cli.hostile_hub import hostile_hub
from tests.unit.cli.test_hostile_answers import ID, TOOL, end, words

CHANGING = {
    f"approvals approve {ID} --yes": ("DecideApproval", "toolhub approvals show"),
    f"approvals deny {ID}": ("DecideApproval", "toolhub approvals show"),
    f"jobs cancel {ID}": ("CancelJob", f"toolhub jobs show {ID}"),
    f"jobs submit {TOOL}": ("SubmitJob", f"toolhub jobs list --request cli --tool {TOOL}"),
    f"call {TOOL}": ("InvokeStream", f"toolhub jobs list --request cli --tool {TOOL}"),
    f"artifacts delete {ID} --yes": ("DeleteArtifact", "toolhub artifacts show"),
    "artifacts put FILE --name x": ("WriteArtifact", "toolhub artifacts list --sha256"),
    "credentials revoke demo": ("RevokeCredential", "toolhub credentials list"),
}


@pytest.mark.parametrize("command", CHANGING)
def test_a_command_whose_hub_stops_says_how_to_find_out(tmp_path: Path, command: str) -> None:
    method, advice = CHANGING[command]
    with hostile_hub() as (address, handlers):
        handlers.adjust = {"GetJobResponse": lambda answer: end(answer.job.status)}
        handlers.holds = method
        stopper = threading.Thread(target=handlers.stop_when_held)
        stopper.start()
        env = environment(tmp_path, TOOLHUB_ADDRESS=address)
        done = run(words(command, tmp_path), stdin="", env=env, cwd=tmp_path, timeout_s=60)
        stopper.join()
    assert done.returncode == 4, done.stderr
    assert "may have had its effect" in done.stderr
    assert advice in done.stderr
    assert "toolhub serve" not in done.stderr


def test_a_read_that_lost_its_answer_changed_nothing(tmp_path: Path) -> None:
    with hostile_hub() as (address, handlers):
        handlers.holds = "ListTools"
        stopper = threading.Thread(target=handlers.stop_when_held)
        stopper.start()
        env = environment(tmp_path, TOOLHUB_ADDRESS=address)
        done = run(["tools", "list"], stdin="", env=env, cwd=tmp_path, timeout_s=60)
        stopper.join()
    assert done.returncode == 3
    assert "Nothing was changed by this command" in done.stderr
