"""`toolhub policy import`: what it prints and writes, and how it refuses other files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toolhub_service.cli.root import toolhub


def ran(*words: str) -> Result:
    return CliRunner().invoke(toolhub, list(words))


@pytest.mark.promise("faces.import-never-wider")
def test_a_permission_file_becomes_a_policy_that_the_check_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLHUB_DATA_DIR", str(tmp_path / "hub"))
    Path("users.json").write_text('{"users": {"alice": ["read:file"], "bob": ["sudo"]}}')
    result = ran("policy", "import", "local-tools", "users.json")
    assert (result.exit_code, result.stdout.splitlines()[0][:36]) == (0, "# Translated from users.json by `too")
    assert "bob: the permission 'sudo' is left out" in " ".join(result.stderr.split())
    assert ran("policy", "import", "local-tools", "users.json", "--strict").exit_code == 1
    assert ran("policy", "import", "local-tools", "users.json", "--output", "new.yaml").exit_code == 0
    assert Path("new.yaml").stat().st_mode & 0o777 == 0o600
    assert ran("policy", "check", "--strict", "new.yaml").exit_code == 0
    kept = ran("policy", "import", "local-tools", "users.json", "--output", "new.yaml")
    assert (kept.exit_code, "File exists" in kept.stderr) == (1, True)
    Path("agents.yaml").write_text("agents: {local: {allow: [read], require_approval: [write]}}")
    assert ran("policy", "import", "openclaw", "agents.yaml", "--output", "claw.yaml").exit_code == 0
    assert ran("policy", "check", "--strict", "claw.yaml").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "users: {a: [], a: [read:file]}",
        "- a",
        "a: [",
        "users: {a: [b], c: *x}",
        "users: &x {a: *x}",
        "\x00",
        "7",
        "",
        "[" * 1_200,
    ],
)
def test_a_file_that_is_none_is_refused_by_name(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.yaml").write_text(text)
    for kind in ("local-tools", "openclaw"):
        broken = ran("policy", "import", kind, "broken.yaml")
        assert (broken.exit_code, broken.stdout) == (1, "")
        assert broken.stderr.startswith("Error: broken.yaml: "), broken.stderr
