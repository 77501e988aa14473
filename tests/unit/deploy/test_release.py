"""`make release`: performed in a repository of its own that has the files it writes."""

from __future__ import annotations

import datetime as dt
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolhub_service import __version__

ROOT = Path(__file__).parents[3]
SCRIPT = ".ci/release.py"
_spec = importlib.util.spec_from_file_location("release", ROOT / SCRIPT)
assert _spec is not None
assert _spec.loader is not None
releasing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(releasing)
NEXT = "7.8.9"
AUTHOR = {"GIT_CONFIG_GLOBAL": "/dev/null"} | {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (("NAME", "A"), ("EMAIL", "a@b.example"))
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in {SCRIPT, releasing.CHANGELOG, *(file for file, _ in releasing.PLACES)}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, tmp_path / file)
    changelog = tmp_path / releasing.CHANGELOG
    head = changelog.read_text().partition(releasing.HEADING)[0]
    changelog.write_text(f"{head}## Unreleased\n\n### Added\n\n- A line.\n\n## 0.0.1 - 2020-01-01\n\n- An older one.\n")
    for name, value in AUTHOR.items():
        monkeypatch.setenv(name, value)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Begin")
    return tmp_path


def git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=True).stdout


def refusal(tree: Path, version: str) -> str:
    with pytest.raises(releasing.Refused) as refused:
        releasing.release(tree, version, dt.date(2026, 1, 2))
    return str(refused.value)


@pytest.mark.promise("packaging.release")
def test_server_clients_and_chart_have_one_version() -> None:
    assert set(releasing.versions(ROOT).values()) == {__version__}


@pytest.mark.promise("packaging.release")
def test_a_release_sets_every_version_dates_the_changelog_tags_and_pushes_nothing(tree: Path) -> None:
    done = subprocess.run([sys.executable, tree / SCRIPT, NEXT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"git push --atomic origin HEAD v{NEXT}" in done.stdout
    assert set(releasing.versions(tree).values()) == {NEXT}
    _, _, rest = (tree / releasing.CHANGELOG).read_text().partition("## Unreleased\n\n")
    heading, _, entries = rest.partition("\n")
    assert heading.startswith(f"## {NEXT} - 20")
    assert entries == "\n### Added\n\n- A line.\n\n## 0.0.1 - 2020-01-01\n\n- An older one.\n"
    tags = [f"clients/go/v{NEXT}", f"gen/go/v{NEXT}", f"v{NEXT}"]
    assert git(tree, "tag").split() == tags
    assert set(git(tree, "rev-parse", *(f"{tag}^{{}}" for tag in tags), "HEAD").split()) == {
        git(tree, "rev-parse", "HEAD").strip()
    }
    text = git(tree, "tag", "--list", "--format=%(contents)", f"v{NEXT}").strip()
    assert text == f"tool-hub {NEXT}\n\n### Added\n\n- A line."
    assert git(tree, "status", "--porcelain") == ""
    assert refusal(tree, NEXT) == f"the tag v{NEXT} exists: take the next version"
    assert "has nothing below Unreleased" in refusal(tree, "7.9.0")


@pytest.mark.promise("packaging.release")
def test_a_wrong_or_uncommitted_version_is_refused_and_nothing_is_changed(tree: Path) -> None:
    before = git(tree, "rev-parse", "HEAD")
    for version, reason in {"": "is no version", "v1.2.3": "is no version", "0.0.9": "is older than"}.items():
        assert reason in refusal(tree, version)
    (tree / "clients/ts/package.json").write_text('{"version": "0.0.0"}')
    assert "the versions differ" in refusal(tree, NEXT)
    git(tree, "checkout", "--quiet", ".")
    (tree / "new.py").touch()
    assert "not committed" in refusal(tree, NEXT)
    assert (git(tree, "rev-parse", "HEAD"), git(tree, "tag"), git(tree, "diff")) == (before, "", "")
