"""The official conformance suite against the hub as an MCP server: every check of both eras passes.

The suite runs once for each era, in one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import pytest

from tests.conformance.report import PAGE
from tests.conformance.server_suite import Scenario, run, table
from tests.conformance.suite import ROOT

BOTH: Final = frozenset(
    {
        *("completion-complete", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio"),
        *("tools-call-embedded-resource", "tools-call-mixed-content", "tools-call-error", "tools-call-with-progress"),
        *("json-schema-2020-12", "server-sse-multiple-streams", "resources-list", "resources-read-text"),
        *("resources-read-binary", "resources-templates-read", "prompts-list", "prompts-get-simple"),
        *("prompts-get-with-args", "prompts-get-embedded-resource", "prompts-get-with-image"),
        "dns-rebinding-protection",
    }
)
SCENARIOS: Final[Mapping[str, frozenset[str]]] = {
    "2025-11-25": BOTH
    | {
        *("server-initialize", "server-session-lifecycle", "logging-set-level", "ping", "tools-call-with-logging"),
        *("tools-call-sampling", "tools-call-elicitation", "elicitation-sep1034-defaults", "server-sse-polling"),
        *("elicitation-sep1330-enums", "resources-subscribe", "resources-unsubscribe"),
    },
    "2026-07-28": BOTH
    | {
        *("server-stateless", "sep-2164-resource-not-found", "caching", "http-header-validation"),
        "http-custom-header-server-validation",
        *(
            f"input-required-result-{name}"
            for name in (
                *("basic-elicitation", "basic-sampling", "basic-list-roots", "request-state", "multi-round"),
                *("multiple-input-requests", "missing-input-response", "non-tool-request", "result-type"),
                *("unsupported-methods", "tampered-state", "capability-check", "ignore-extra-params", "validate-input"),
            )
        ),
    },
}
"""All there are: one that is missing from a run fails, and so does one that a newer suite brings."""
NOT_FOR_US: Final[Mapping[str, frozenset[str]]] = {
    "server-sse-polling": frozenset(
        {
            *("outgoing-request", "incoming-response", "incoming-sse-event", "stream-closed"),
            *("server-sse-priming-event", "server-sse-retry-field", "server-sse-disconnect-resume"),
        }
    ),
    "server-sse-multiple-streams": frozenset({"server-sse-streams-functional"}),
}
"""Checks that need not pass, by scenario; why is said in docs/conformance.md."""

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


@pytest.fixture(scope="module")
def eras(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Scenario]]:
    async def both() -> dict[str, dict[str, Scenario]]:
        return {era: await run(era, tmp_path_factory.mktemp("served")) for era in SCENARIOS}

    return asyncio.run(both())


@pytest.mark.parametrize("era", SCENARIOS)
@pytest.mark.promise("mcpserver.conformance")
def test_every_check_of_every_scenario_of_an_era_passes(eras: Mapping[str, Mapping[str, Scenario]], era: str) -> None:
    found = eras[era]
    assert set(found) == SCENARIOS[era]
    failed = {}
    for name, scenario in found.items():
        allowed = NOT_FOR_US.get(name, frozenset())
        others = {check: why for check, why in scenario.others.items() if check not in allowed}
        if others or not (scenario.passed or allowed):
            failed[name] = others
    assert failed == {}


def test_the_page_has_the_figures_of_the_run(eras: Mapping[str, Mapping[str, Scenario]]) -> None:
    wanted = table(eras)
    assert wanted in (ROOT / PAGE).read_text(), wanted
