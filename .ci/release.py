"""Makes a release of the work tree: `python .ci/release.py 1.2.3` (make release VERSION=1.2.3). It pushes nothing.

The section Unreleased of CHANGELOG.md becomes that of the version and the text of its tag; the version is written to
every place that has one; both are committed and tagged.
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
from pathlib import Path

SOURCE = "service/toolhub_service/__init__.py"
"""Where the version is read from: by the hub, by the wheels of server and Python client, with or without git."""
_X_Y_Z = r"(\d+\.\d+\.\d+)"
PLACES = (
    (SOURCE, rf'__version__ = "{_X_Y_Z}"'),
    ("clients/ts/package.json", rf'"version": "{_X_Y_Z}"'),
    ("clients/ts/src/connection.ts", rf'const VERSION = "{_X_Y_Z}"'),
    ("clients/go/toolhub/connection.go", rf'const version = "{_X_Y_Z}"'),
    ("clients/go/go.mod", rf"tool-hub/gen/go v{_X_Y_Z}"),
    ("clients/go/go.work", rf"tool-hub/gen/go v{_X_Y_Z} =>"),
    ("deploy/helm/toolhub/Chart.yaml", rf"(?m)^version: {_X_Y_Z}"),
    ("deploy/helm/toolhub/Chart.yaml", rf'(?m)^appVersion: "{_X_Y_Z}"'),
)
"""File and pattern of each place that a version stands in, once."""
TAGS = ("v{}", "gen/go/v{}", "clients/go/v{}")
"""A Go module below the root is found by the tag that begins with its folder."""
CHANGELOG = "CHANGELOG.md"
HEADING = "## Unreleased\n"


class Refused(Exception):
    """Why no release is made, and what to do."""


def versions(root: Path) -> dict[tuple[str, str], str]:
    """The version at each place."""
    found = {}
    for file, pattern in PLACES:
        there = re.findall(pattern, (root / file).read_text())
        if len(there) != 1:
            raise Refused(f"{file}: {pattern} stands there {len(there)} times, not once")
        found[file, pattern] = str(there[0])
    return found


def notes(changelog: str) -> str:
    """The entries below Unreleased."""
    _, heading, rest = changelog.partition(HEADING)
    entries = re.split(r"(?m)^## ", rest)[0].strip()
    if not heading or not re.search(r"(?m)^- ", entries):
        raise Refused(f"{CHANGELOG} has nothing below Unreleased: write what a user of the hub notices")
    return entries


def check(root: Path, version: str) -> None:
    """Refuse what is no next version, and a work tree that is not what would be tagged."""
    if not re.fullmatch(_X_Y_Z, version):
        raise Refused(f"{version!r} is no version: give one as 1.2.3")
    current = versions(root)
    if len(set(current.values())) != 1:
        raise Refused("the versions differ: " + ", ".join(f"{file} {there}" for (file, _), there in current.items()))
    if _parts(version) < _parts(current[PLACES[0]]):
        raise Refused(f"{version} is older than {current[PLACES[0]]}, which the tree has")
    if _git(root, "status", "--porcelain"):
        raise Refused("there are changes that are not committed: commit them first, or put them aside")
    if there := [tag for tag in _tags(version) if _git(root, "tag", "--list", tag)]:
        raise Refused(f"the tag {there[0]} exists: take the next version")


def release(root: Path, version: str, day: dt.date) -> None:
    check(root, version)
    changelog = (root / CHANGELOG).read_text()
    entries = notes(changelog)
    (root / CHANGELOG).write_text(changelog.replace(HEADING, f"{HEADING}\n## {version} - {day.isoformat()}\n", 1))
    for file, pattern in PLACES:
        text = (root / file).read_text()
        start, end = next(re.finditer(pattern, text)).span(1)
        (root / file).write_text(text[:start] + version + text[end:])
    _git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
    for tag in _tags(version):
        _git(root, "tag", "--annotate", "--cleanup=whitespace", "--message", f"tool-hub {version}\n\n{entries}", tag)


def main(version: str) -> int:
    root = Path(__file__).resolve().parent.parent
    try:
        release(root, version, dt.datetime.now(dt.UTC).date())
    except Refused as refused:
        print(f"No release: {refused}", file=sys.stderr)
        return 1
    print(f"Released {version} in this checkout. When `make check` and `make test` pass:")
    print(f"  git push --atomic origin HEAD {' '.join(_tags(version))}")
    return 0


def _tags(version: str) -> list[str]:
    return [tag.format(version) for tag in TAGS]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [""]))
