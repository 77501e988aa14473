"""examples/policies: each is a policy, and does what its first line says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.planned_calls import DELETE_PATH, READ_TEXT, REQUEST, RUN, WRITE_TEXT, a_call
from tests.unit.docs.pages_of_docs import ROOT, links
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.verdict import Effect, Verdict
from toolhub_service.policy.decide import PolicySnapshot

FOLDER = ROOT / "examples" / "policies"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def load(name: str) -> PolicySnapshot:
    return PolicySnapshot.load((FOLDER / name).read_text())


def a_request(url: str, principal: str = "local", method: str = "GET") -> PlannedCall:
    return a_call(REQUEST, {"url": url, "method": method}, principal=principal)


def a_write(principal: str = "local", **args: Any) -> PlannedCall:
    return a_call(WRITE_TEXT, {"path": "a", "text": "b", **args}, principal=principal)


GITHUB = "https://api.github.com/zen"
DECISIONS = [
    ("one-host.yaml", a_request(GITHUB), Effect.ALLOW),
    ("one-host.yaml", a_request("https://example.com/"), Effect.DENY),
    ("one-host.yaml", a_request("http://api.github.com/"), Effect.DENY),
    ("one-host.yaml", a_request(GITHUB, method="POST"), Effect.DENY),
    ("one-host.yaml", a_write(), Effect.ALLOW),
    ("read-only.yaml", a_request(GITHUB, "researcher-1"), Effect.ALLOW),
    ("read-only.yaml", a_request(GITHUB, "researcher-1", "POST"), Effect.DENY),
    ("read-only.yaml", a_request("https://127.0.0.1/", "researcher-1"), Effect.DENY),
    ("read-only.yaml", a_call(READ_TEXT, {"path": "a"}, principal="researcher-1"), Effect.ALLOW),
    ("read-only.yaml", a_write("researcher-1"), Effect.DENY),
    ("read-only.yaml", a_call(READ_TEXT, {"path": "a"}), Effect.DENY),
    ("ops-commands.yaml", a_call(RUN, {"argv": ["ls"]}, principal="ops"), Effect.ALLOW),
    ("ops-commands.yaml", a_call(RUN, {"argv": ["rm", "a"]}, principal="ops"), Effect.DENY),
    ("ops-commands.yaml", a_call(RUN, {"argv": ["ls"]}), Effect.DENY),
    ("approvals.yaml", a_write(overwrite=False), Effect.ALLOW),
    ("approvals.yaml", a_write(overwrite=True), Effect.REQUIRE_APPROVAL),
    ("approvals.yaml", a_call(DELETE_PATH, {"path": "a"}), Effect.REQUIRE_PLAN),
    ("limits.yaml", a_request(GITHUB), Effect.ALLOW),
]


@pytest.mark.parametrize(("name", "planned", "effect"), DECISIONS)
def test_an_example_does_what_is_said_of_it(name: str, planned: PlannedCall, effect: Effect) -> None:
    assert load(name).decide(planned).effect is effect


def test_no_example_goes_untold() -> None:
    assert sorted({name for name, _, _ in DECISIONS}) == FILES
    assert {f"policies/{name}" for name in FILES} <= set(links(ROOT / "examples" / "README.md"))


def test_every_example_begins_with_what_it_is_for() -> None:
    for name in FILES:
        assert (FOLDER / name).read_text().startswith("# "), name


def verdict(name: str, planned: PlannedCall) -> Verdict:
    return load(name).decide(planned)


def test_limits_bind_each_agent_each_tool_and_all_together() -> None:
    limits = verdict("limits.yaml", a_request(GITHUB)).limits
    assert [limit.id for limit in limits] == ["each-agent|local", "web|local|core/http.request", "web-of-a-day"]


def test_commands_run_in_bubblewrap_or_not_at_all() -> None:
    allowed = verdict("ops-commands.yaml", a_call(RUN, {"argv": ["ls"]}, principal="ops"))
    assert allowed.constraints.sandbox.require_bubblewrap


def test_an_internal_address_is_refused_as_such() -> None:
    refused = verdict("read-only.yaml", a_request("https://169.254.169.254/", "researcher-1"))
    assert refused.kind is ErrorKind.HTTP_DISALLOWED_HOST
