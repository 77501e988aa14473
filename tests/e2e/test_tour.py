"""README.md and then docs/tour.md as a newcomer follows them: every command is run in a terminal, and what it shows is
compared.

In the console blocks of both `$ ` begins a command, a here-document ends at `EOF`, and everything else is what is
shown. `…` stands for any characters, a line of `…` alone for any lines. A `…` in a command stands for what was printed
before: the command is a line to be pasted, or its `job_…` is the last word that began so.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.terminal import BIN, ROOT, Terminal, environment, in_terminal, terminal
from tests.free_port import free_port
from tests.missing import give_up

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = README + (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:50051"
METRICS = "127.0.0.1:9464"
MCP = "127.0.0.1:50052"
SERVE = [os.path.relpath(BIN / "toolhub", ROOT), "serve"]


@dataclass(slots=True)
class Step:
    command: str
    shown: list[str] = field(default_factory=list)

    @property
    def lacks_lines(self) -> bool:
        """Whether it is a here-document that has not come to its end."""
        return "<< 'EOF'" in self.command and not self.command.endswith("\nEOF")


def steps_of(text: str) -> Iterator[Step]:
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        step = None
        for line in block.splitlines():
            if step and step.lacks_lines:
                step.command += f"\n{line}"
            elif line.startswith("$ "):
                if step:
                    yield step
                step = Step(line[2:])
            elif step:
                step.shown.append(line)
        if step:
            yield step


def pattern_of(lines: list[str]) -> str:
    return "".join(r"(?:.*\n)*?" if line == "…" else wild(line, ".*") + r"\n" for line in lines)


def wild(text: str, anything: str) -> str:
    return anything.join(re.escape(part) for part in text.split("…"))


def completed(command: str, transcript: str) -> str:
    """The command with its `…` as it was printed before."""
    if "…" not in command:
        return command
    line = wild(command, r"\S*")
    printed = re.findall(f"^{line}$", transcript, re.MULTILINE)
    return str(printed[-1]) if printed else re.sub(r"\b(\w+_)…", lambda word: named(word[1], transcript), command)


def named(start: str, transcript: str) -> str:
    printed = re.findall(rf"\b{start}\w+", transcript)
    assert printed, f"nothing to paste for {start}…"
    return str(printed[-1])


@dataclass(slots=True)
class TourHarness:
    """A hub in one terminal, a user in another."""

    screen: Terminal
    address: str
    metrics: str
    mcp: str
    home: Path
    folder: Path

    def plain_text(self, text: str) -> str:
        """As it would read at the default ports."""
        return text.replace(self.address, ADDRESS).replace(self.metrics, METRICS).replace(self.mcp, MCP)

    def run(self, command: str) -> str:
        env = environment(self.home, TOOLHUB_ADDRESS=self.address)
        shown = in_terminal(["bash", "-c", command.replace(ADDRESS, self.address)], env, cwd=self.folder)
        return self.plain_text(shown.text)


@pytest.fixture
def tour(tmp_path: Path) -> Iterator[TourHarness]:
    home, folder = tmp_path / "home", tmp_path / "clone"
    home.mkdir()
    folder.mkdir()
    with terminal(SERVE, hub_environment(home)) as (_, screen):
        shown = screen.wait_for("tools list\n")
        address, metrics, mcp = re.findall(r"127\.0\.0\.1:\d+", shown)[:3]
        yield TourHarness(screen, address, metrics, mcp, home, folder)


def hub_environment(home: Path) -> dict[str, str]:
    free = {"TOOLHUB_SERVER_LISTEN": f"127.0.0.1:{free_port()}", "TOOLHUB_METRICS_LISTEN": "127.0.0.1:0"}
    free["TOOLHUB_SERVER_MCP_LISTEN"] = "127.0.0.1:0"
    return environment(home, **free)


def test_the_printed_tour_runs_as_documented(tour: TourHarness) -> None:
    steps = [step for step in steps_of(TOUR) if not step.command.startswith(("make ", "grpcurl "))]
    assert len(steps) >= 12
    transcript = ""
    for step in steps:
        command = completed(step.command, transcript)
        shown = tour.run(command)
        transcript += shown
        assert re.fullmatch(pattern_of(step.shown), shown), (
            f"$ {command}\n{shown}\n--- but the page says\n" + "\n".join(step.shown)
        )


@pytest.mark.promise("serving.reflection")
def test_the_tour_runs_with_grpcurl(tour: TourHarness) -> None:
    if not (BIN / "grpcurl").exists():
        give_up("grpcurl is not here: make setup")
    steps = [step for step in steps_of(TOUR) if step.command.startswith("grpcurl ")]
    assert steps
    for step in steps:
        shown = tour.run(step.command)
        assert re.fullmatch(pattern_of(step.shown), shown), f"$ {step.command}\n{shown}"


def test_make_run_prints_what_the_readme_shows(tour: TourHarness) -> None:
    (step,) = [step for step in steps_of(README) if step.command == "make run"]
    banner = tour.plain_text(tour.screen.text).replace(f"TOOLHUB_ADDRESS={ADDRESS} ", "")
    shown = [line for line in step.shown if not line.startswith("setup")]
    assert re.fullmatch(pattern_of(shown), banner.replace(f"{os.path.relpath(BIN, ROOT)}/", ".venv/bin/")), banner


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_program_of_the_tour_is_one_that_setup_brings() -> None:
    programs = {re.sub(r"^(\w+=(\$\([^)]*\)|\S*) )*", "", step.command).split()[0] for step in steps_of(TOUR)}
    assert programs <= {"make", "export", "toolhub", "cat", "seq", "grpcurl", "python"}
    assert shutil.which("bash")
