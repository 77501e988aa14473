"""A hub whose optional libraries are not installed: it starts, and names for each tool the extra that brings it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXTRAS = {
    "web": ("core/web.fetch",),
    "browser": ("core/web.screenshot",),
    "desktop": ("core/desktop.screenshot",),
    "media": ("core/media.send",),
    "db": ("core/db.describe", "core/db.query"),
    "programs": ("core/program.run",),
}
BLOCKED = (
    "apprise lxml mss pgparse playwright psycopg psycopg_pool pyarrow pydantic_monty readability sqlglot trafilatura"
)
# Python imports it at its start: from then on these libraries are not there.
SITE = f"""
import importlib.abc, importlib.util, sys
blocked = frozenset({BLOCKED.split()!r})
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(name, name=name)
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *of: None if name.partition(".")[0] in blocked else found(name, *of)
sys.meta_path.insert(0, Absent())
"""
SETTINGS = """
databases: [{name: shop, file: shop.db}]
channels: [{name: team, url: {env: TEAM_CHANNEL}}]
"""


def test_each_tool_that_lacks_its_library_names_the_extra_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    (tmp_path / "toolhub.yaml").write_text(SETTINGS)
    result = subprocess.run(
        [sys.executable, "-m", "toolhub_service", "doctor", "--json", "--config", "toolhub.yaml"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "TEAM_CHANNEL": "json://127.0.0.1:9", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = json.loads(result.stdout)["findings"]
    optional = "\n".join(finding["told"] for finding in findings if finding["name"] == "optional")
    for extra, tools in EXTRAS.items():
        (line,) = [line for line in optional.splitlines() if f"extras install {extra}" in line]
        assert all(tool in line for tool in tools), line
