"""No command lets what a hub answers act on the terminal: every text of every answer is hostile here.

The first test fails for a command that is new, the second for a module that prints past `cli/terminal/output.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.command_server import run
from tests.e2e.terminal import environment, terminal
from tests.unit.cli.hostile_hub import ACTING, FORGED, HOSTILE, Handlers, hostile_hub
from toolhub.v1 import job_pb2, job_state_pb2, pin_pb2
from toolhub_service import cli
from toolhub_service.cli.root import toolhub

ID = "id_" + "0" * 40
TOOL = "demo/tool"
COMMANDS = {
    "call": f"call {TOOL} a=b",
    "call --dry-run": f"call {TOOL} --dry-run",
    "run": "run --face local-tools {}",
    "program run": "program run FILE --watch",
    "program stubs": "program stubs",
    "tools export": "tools export --format mcp",
    "tools list": "tools list",
    "tools register": "tools register FILE",
    "tools search": "tools search word",
    "tools show": f"tools show {TOOL}",
    "tools snapshot": "tools snapshot",
    "tools unregister": f"tools unregister {TOOL} --yes",
    "sources list": "sources list -o wide",
    "sources login": "sources login HOSTILE --no-browser --paste",
    "sources logout": "sources logout demo",
    "sources refresh": "sources refresh",
    "sources show": "sources show HOSTILE",
    "skills list": "skills list",
    "skills run": "skills run demo/skill",
    "pins accept": f"pins accept {TOOL} --yes",
    "pins diff": f"pins diff {TOOL}",
    "pins list": "pins list",
    "pins reject": f"pins reject {TOOL}",
    "jobs cancel": f"jobs cancel {ID}",
    "jobs list": "jobs list",
    "jobs result": f"jobs result {ID}",
    "jobs show": f"jobs show {ID}",
    "jobs submit": f"jobs submit {TOOL} --watch",
    "jobs watch": f"jobs watch {ID}",
    "artifacts delete": f"artifacts delete {ID} --yes",
    "artifacts get": f"artifacts get {ID} -o -",
    "artifacts list": "artifacts list",
    "artifacts put": "artifacts put FILE",
    "artifacts show": f"artifacts show {ID}",
    "approvals approve": f"approvals approve {ID} --yes",
    "approvals deny": f"approvals deny {ID}",
    "approvals list": "approvals list",
    "approvals show": f"approvals show {ID}",
    "audit export": "audit export",
    "audit query": "audit query",
    "audit report": "audit report",
    "audit tail": "audit tail",
    "audit verify": "audit verify",
    "auth whoami": "auth whoami",
    "credentials list": "credentials list",
    "credentials login": "credentials login demo --no-browser --paste",
    "credentials revoke": "credentials revoke demo",
    "credentials set": "credentials set demo",
    "doctor": "doctor",
}
OTHERS = {
    "approvals watch": "never ends; tests/unit/cli/approvals/test_commands.py",
    "auth token": "prints what the issuer answered, for a program",
    "context add": "asks no hub",
    "health": "a status of four values",
}
ASKING = {"credentials set", "credentials login", "sources login"}
# What a tool wrote, as a whole: lines of it may look like anything.
DOCUMENTS = {"call", "program stubs", "tools export", "artifacts get", "jobs result", "jobs show", "jobs watch"}


PENDING = pin_pb2.Pin(tool=TOOL, state=pin_pb2.PIN_STATE_PENDING)


def end(status: job_pb2.JobStatus) -> None:
    status.state = job_state_pb2.JOB_STATE_FAILED


@pytest.fixture(scope="module")
def hub() -> Iterator[tuple[str, Handlers]]:
    with hostile_hub() as (address, handlers):
        handlers.adjust = {
            "GetJobResponse": lambda answer: end(answer.job.status),
            "SubmitJobResponse": lambda answer: end(answer.job.status),
            "WatchJobResponse": lambda answer: end(answer.status),
            "ListPinsResponse": lambda answer: answer.pins[0].MergeFrom(PENDING),
        }
        yield address, handlers


def shown(name: str, command: list[str], env: dict[str, str], folder: Path) -> list[str]:
    """Everything that reached a terminal, unless the command asks something there."""
    if name in ASKING:
        return []
    with terminal(["toolhub", *command], env, cwd=folder, forks=True) as (_, screen):
        screen.rest()
        return [screen.raw.decode()]


def words(line: str, folder: Path) -> list[str]:
    file = folder / "file"
    file.write_text("1")
    return [{"FILE": str(file), "HOSTILE": HOSTILE}.get(word, word) for word in line.split()]


def remaining(text: str) -> list[str]:
    """What acts on a terminal, of the hostile texts: the command's own colours have no `!` behind them."""
    return [ascii(each) for each in ACTING if f"{each}!" in text]


def forged(text: str) -> list[str]:
    return [line for line in text.replace("\r", "\n").split("\n") if line.startswith(FORGED)]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("refuses", [False, True], ids=["answered", "refused"])
def test_no_answer_acts_on_a_terminal_or_in_a_pipe(
    hub: tuple[str, Handlers], tmp_path: Path, name: str, refuses: bool
) -> None:
    address, handlers = hub
    handlers.refuses = refuses
    env = environment(tmp_path, TOOLHUB_ADDRESS=address)
    command = words(COMMANDS[name], tmp_path)
    piped = run(command, stdin="", env=env, cwd=tmp_path, timeout_s=60)
    for text in (
        *shown(name, command, env, tmp_path),
        piped.stderr,
        *([] if name == "artifacts get" else [piped.stdout]),
    ):
        assert "Traceback" not in text
        assert remaining(text) == []
        assert name in DOCUMENTS or forged(text) == []


def test_every_command_that_asks_a_hub_is_tested_here() -> None:
    assert {*commands(toolhub, click.Context(toolhub))} == {
        name.removesuffix(" --dry-run") for name in COMMANDS
    } | OTHERS.keys()


def commands(command: click.Command, context: click.Context, place: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, context, f"{place} {name}".lstrip())
    elif any(option.name == "address" for option in command.params):
        yield place


PRINTING = {"echo", "secho", "style", "prompt", "confirm", "print", "write", "print_exception"}
# Each with what it prints that no person reads, or that is nobody else's.
MAY_PRINT = {
    "terminal/output.py": "the one that prints",
    "terminal/questions.py": "click.prompt for a question without a terminal, whose label is escaped",
    "approvals/board.py": "rich's console, of escaped lines",
    "terminal/progress.py": "rich's console, of escaped lines",
    "mcp/commands.py": "messages of MCP, for a program",
    "serve.py": "the signal of a worker to its supervisor",
    "audit/commands.py": "sealed events, by binary_output",
    "artifacts/transfers.py": "the bytes of an artifact, by binary_output",
}


def test_no_other_module_of_the_command_line_prints() -> None:
    folder = Path(cli.__file__).parent
    found = {
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and is_printing(node.func)
    }
    assert found <= MAY_PRINT.keys()


def is_printing(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "print"
    if not isinstance(function, ast.Attribute) or function.attr not in PRINTING:
        return False
    of = ast.unparse(function.value)
    return of == "click" or "std" in of or "console" in of or "output" in of or "target" in of
