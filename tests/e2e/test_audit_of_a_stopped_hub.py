"""`toolhub audit …` reads the files of a hub that was stopped, by its folder or by its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command_line import CommandLine, serving


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A hub that has written a file, refused to delete it, and was stopped."""
    home = tmp_path_factory.mktemp("stopped")
    with serving(home, "--data-dir", str(home / "hub")) as cli:
        assert cli("call", "core/fs.writeText", "path=a.txt", "text=x").code == 0
        assert cli("call", "core/fs.deletePath", "path=a.txt", "confirm=true").code == 1
    (home / "toolhub.yaml").write_text(f"data_dir: {home / 'hub'}")
    return CommandLine(home, "127.0.0.1:1")


def options(cli: CommandLine) -> list[tuple[str, Path]]:
    return [("--data-dir", cli.home / "hub"), ("--config", cli.home / "toolhub.yaml")]


@pytest.mark.parametrize("place", [0, 1], ids=["folder", "configuration"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("query", "--since", "yesterday"), "core/fs.deletePath"),
        (("query", "--type", "REFUSED"), '{"confirm":true,"path":"a.txt","recursive":false}'),
        (("tail", "-n", "50"), "core/fs.writeText"),
        (("report",), "Calls by principal"),
        (("verify",), "none changed, removed or moved"),
        (("export",), '"tool": "core/fs.deletePath"'),
        (("export", "--as", "lines"), '"tool":"core/fs.deletePath"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_reads_the_files(stopped: CommandLine, words: tuple[str, ...], expected: str, place: int) -> None:
    option, path = options(stopped)[place]
    result = stopped("audit", *words, option, str(path))
    assert result.code == 0, result.err
    assert expected in result.out


def test_a_refusal_is_told_with_what_was_refused_and_why(stopped: CommandLine) -> None:
    report = stopped("audit", "report", "--data-dir", str(stopped.home / "hub"), "-o", "json").json
    assert report["reasons"] == [{"kind": "POLICY_DENIED", "count": 1}]
    (of_local,) = report["principals"]
    assert of_local == {"principal": "local", "calls": 2, "succeeded": 1, "failed": 0, "refused": 1}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tail", "-f"), "--follow needs a running hub"),
        (("query", "--tenant", "acme"), "--tenant needs a hub"),
        (("query", "--until", "soon"), "09:00 (today, UTC)"),
    ],
)
def test_what_files_cannot_answer_is_refused(stopped: CommandLine, words: tuple[str, ...], expected: str) -> None:
    result = stopped("audit", *words, "--data-dir", str(stopped.home / "hub"))
    assert result.code != 0
    assert expected in " ".join(result.err.split())


def test_a_folder_without_a_log_is_refused(stopped: CommandLine) -> None:
    result = stopped("audit", "query", "--data-dir", str(stopped.home / "nowhere"))
    assert result.code == 1
    assert "There is no audit log at" in result.err


@pytest.mark.parametrize("option", ["--roles", "--capabilities"])
def test_several_values_in_one_word_are_answered_with_how_to_write_them(stopped: CommandLine, option: str) -> None:
    given = "agent,approver" if option == "--roles" else "read:fs,write:fs"
    result = stopped("keys", "create", "ci", option, given, "--data-dir", str(stopped.home / "hub"))
    assert result.code == 2
    assert " ".join(f"{option} {each}" for each in given.split(",")) in " ".join(result.err.split())
