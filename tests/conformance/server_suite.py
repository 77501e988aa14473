"""The suite in server mode: all scenarios of one protocol version against a hub, in one process of the suite.

Behind the hub stands `everything`, as a source like any other, whose tools are listed without its name before theirs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.everything import served
from tests.mcp_server.mcp_hub import mcp_hub
from tests.rpc.real_servers import WITHIN_S, write_sources
from tests.servers import node_program

SOURCE: Final = "everything"
RELAY: Final = ["elicitation", "sampling", "roots", "logging"]
POLICY: Final = """
extends: none
grants: [{principals: [local], capabilities: ["mcp:*"]}]
roles: [{principals: [local], roles: [agent]}]
"""
_SUITE_S: Final = 240.0
_STAMP: Final = re.compile(r"^server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one has found."""

    checks: tuple[Mapping[str, Any], ...]

    @property
    def passed(self) -> int:
        return sum(check["status"] == "SUCCESS" for check in self.checks)

    @property
    def others(self) -> dict[str, str]:
        """What did not pass, by the id of the check: its status, and why."""
        return {
            check["id"]: f"{check['status']}: {check.get('errorMessage') or ''}"
            for check in self.checks
            if check["status"] != "SUCCESS"
        }


async def run(era: str, home: Path) -> dict[str, Scenario]:
    """By scenario. `home` does not exist yet."""
    async with served() as url:
        write_sources(home, {SOURCE: {"url": url, "protocol": era, "relay": RELAY}})
        async with mcp_hub(home, policy=POLICY, unprefixed_sources=[SOURCE]) as hub:
            sources = hub.grpc.hub.sourcing.sources
            assert await sources.wait_until_tried([SOURCE], timeout_s=WITHIN_S)
            assert not [status.reason for status in sources.statuses() if status.reason]
            words = ("server", "--url", hub.url, "--suite", "all", "--spec-version", era, "-o", str(home / "results"))
            process = await asyncio.create_subprocess_exec(
                *node_program("conformance"), *words, stdout=asyncio.subprocess.DEVNULL
            )
            try:
                async with asyncio.timeout(_SUITE_S):
                    await process.wait()  # its exit code says less than its files
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    return _found(home / "results")


def _found(results: Path) -> dict[str, Scenario]:
    found = {}
    for file in results.rglob("checks.json"):
        named = _STAMP.match(file.parent.name)
        assert named, file
        found[named[1]] = Scenario(tuple(json.loads(file.read_text())))
    return found


def table(eras: Mapping[str, Mapping[str, Scenario]]) -> str:
    """How many checks of each scenario pass, by era, in Markdown."""
    names = sorted({name for found in eras.values() for name in found})
    rows = [f"| `{name}` | " + " | ".join(_cell(found.get(name)) for found in eras.values()) + " |" for name in names]
    heads = [f"| Scenario | {' | '.join(eras)} |", "|---|" + "---|" * len(eras)]
    return "\n".join([*heads, *rows, f"| all | {' | '.join(_sum(found) for found in eras.values())} |"]) + "\n"


def _sum(found: Mapping[str, Scenario]) -> str:
    passed = [each.passed for each in found.values() if each.passed]
    return f"{len(passed)} of {len(found)} scenarios, {sum(passed)} checks"


def _cell(scenario: Scenario | None) -> str:
    if scenario is None:
        return "–"
    if not scenario.passed:
        return "does not apply"
    left = Counter(each.partition(":")[0] for each in scenario.others.values())
    return ", ".join([str(scenario.passed), *(f"{count} {status.lower()}" for status, count in sorted(left.items()))])
