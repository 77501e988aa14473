"""Every metric, setting, variable, error, reason, alert and message that the documentation names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import code_facts
import pytest

from tests.unit.docs.pages_of_docs import DOCS, ROOT, fences, inline_code, markdown, prose
from toolhub_service.adapters.mcp.transports.reaper import RUN_VARIABLE
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.errors.spec import Code, StartReason
from toolhub_service.domain.event import EventType
from toolhub_service.policy.document import SandboxRule
from toolhub_service.settings.loading import CLIENT_VARIABLES, all_settings
from toolhub_service.telemetry.names import METRICS

SETTINGS = {setting.path for setting in all_settings()}
VARIABLES = {setting.variable for setting in all_settings()} | CLIENT_VARIABLES
VARIABLES |= {f"TOOLHUB_{name}" for name in ("INPUT", "OUTPUT", "CALLS")}  # of a skill's script
VARIABLES |= {"TOOLHUB_SOCKET", "TOOLHUB_TOKEN"}  # which it had before, as the changelog says
VARIABLES |= {"TOOLHUB_OSV_URL"}  # of .ci/audit_deps.py, which is no part of the hub
VARIABLES |= {RUN_VARIABLE}
SECTIONS = {path.partition(".")[0] for path in SETTINGS if "." in path}
POLICY_KEYS = {f"sandbox.{name}" for name in SandboxRule.__struct_fields__}
"""Of the one section that settings and policy.yaml both have."""
SUFFIXES = r"(?:_bucket|_sum|_count|_created)?$"
WORDS = {value.name for values in (ErrorKind, Code, Reason, StartReason) for value in values}
WORDS |= {event.value for event in EventType}
FILES_AND_CALLS = re.compile(r"\.(?:md|py|yaml|yml|json|jsonl|db|key|toml|svg|proto|txt|sock)$|[(/*]")

pages = pytest.mark.parametrize("page", markdown(), ids=lambda path: path.relative_to(ROOT).as_posix())


@pages
def test_metrics_exist(page: Path) -> None:
    names = {metric.name for metric in METRICS}
    documented = {
        word for text in inline_code(page) for word in re.findall(r"\b(?:toolhub|tool|grpc_server)_[a-z_]+\b", text)
    }
    documented -= {
        "toolhub_service",
        "toolhub_client",
        "toolhub_betterproto",
        "toolhub_tools",
        "tool_call",
        "tool_servicer",
        "tool_digest",
        "tool_version",
    }
    assert {name for name in documented if re.sub(SUFFIXES, "", name) not in names} - code_facts.words() == set()


@pages
def test_settings_exist(page: Path) -> None:
    documented = {
        word
        for text in inline_code(page)
        for word in re.findall(rf"^(?:{'|'.join(SECTIONS)})\.[a-z_]+(?:\.[a-z_]+)?(?=$|:| )", text)
        if not FILES_AND_CALLS.search(word)
    }
    paths = SETTINGS | {path.rpartition(".")[0] for path in SETTINGS} | POLICY_KEYS
    paths |= {"policy.document", "sources.document"}  # of the Helm chart
    assert documented - paths - code_facts.words() == set()


@pages
def test_variables_exist(page: Path) -> None:
    text = prose(page) + "\n".join(fences(page, "sh", "bash", "ini", "yaml", "text"))
    assert set(re.findall(r"\bTOOLHUB_[A-Z_]+\b", text)) - VARIABLES == set()


@pytest.mark.parametrize(
    "name", ["deploy", "secure", "backup", "on-call", "policy", "custom-tools", "scope", "architecture"]
)
def test_kinds_and_reasons_exist(name: str) -> None:
    documented = {
        word for text in inline_code(DOCS / f"{name}.md") for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text)
    }
    assert (
        documented - WORDS - VARIABLES - code_facts.words() - {"SO_REUSEPORT", "NOT_SERVING", "PYTHON_IMAGE"} == set()
    )


def test_alerts_exist_and_all_are_told() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    documented = set(re.findall(r"\bToolHub[A-Z]\w+", (DOCS / "on-call.md").read_text()))
    assert documented == set(re.findall(r"alert: (ToolHub\w+)", rules))


def first_cells(page: str, heading: str) -> Iterator[str]:
    """What the first column of the tables of a page that begin with `heading` quotes."""
    for table in (DOCS / page).read_text().split(f"| {heading} |")[1:]:
        for row in table.partition("\n\n")[0].splitlines()[2:]:
            yield from re.findall(r"`([^`]+)`", row.split("|")[1])


@pytest.mark.parametrize("message", [*first_cells("on-call.md", "symptom"), *first_cells("secure.md", "fault")])
def test_messages_that_operators_look_for_are_in_the_code(message: str) -> None:
    known = code_facts.words() | WORDS | SETTINGS
    assert any(message in text for text in known)


def test_tests_named_as_proofs_exist() -> None:
    documented = set(re.findall(r"`((?:tests/[\w/]+/)?\w+\.py)`", (DOCS / "threat-model.md").read_text()))
    assert documented
    missing = [
        name for name in documented if not (ROOT / name).is_file() and not (ROOT / "tests/security" / name).is_file()
    ]
    assert missing == []
