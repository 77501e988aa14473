"""docs/policy.md: every key is there with its default, and every example has its documented effect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.fakes.planned_calls import DELETE_PATH, READ_TEXT, REQUEST, RUN, WRITE_TEXT, a_call, a_tool
from toolhub_service.domain.call import PlannedCall
from toolhub_service.domain.tool import ArgumentRole
from toolhub_service.domain.verdict import Effect
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.document import PolicyDocument

TEXT = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
EXAMPLES = dict(
    re.findall(r"^### (.+?)\n.*?^```yaml\n(.*?)^```", TEXT.partition("## Examples")[2], re.MULTILINE | re.DOTALL)
)


def rows() -> Iterator[str]:
    """The table row of every key, in the order of the document."""
    _, definitions = msgspec.json.schema_components([PolicyDocument], ref_template="{name}")
    for definition in definitions.values():
        for key, value in definition["properties"].items():
            default = "required" if key in definition.get("required", ()) else f"`{json.dumps(value.get('default'))}`"
            if value.get("default") in ({}, []) or "$ref" in value or "allOf" in value:
                default = "–"
            described = value if "description" in value else value["anyOf"][0]
            yield f"| `{key}` | {default} | {described['description']} |"


@pytest.mark.parametrize("row", list(rows()))
def test_every_key_is_documented_with_its_default(row: str) -> None:
    assert row in TEXT


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_example_is_a_policy(name: str) -> None:
    assert PolicySnapshot.load(EXAMPLES[name]).revision


def call(principal: str, planned: PlannedCall, **context: object) -> PlannedCall:
    return a_call(planned.spec, dict(planned.args), principal=principal, **context)  # type: ignore[arg-type]


GET = a_call(REQUEST, {"url": "https://api.github.com/x"})
POST = a_call(REQUEST, {"url": "https://api.github.com/x", "method": "POST"})
DELETE = a_call(DELETE_PATH, {"path": "old"})
SEND = a_call(a_tool("core/media.send", "send:message"), {"channel": "all-hands"})
QUIET = a_call(a_tool("core/media.send", "send:message"), {"channel": "me"})
WRITE = a_call(WRITE_TEXT, {"path": "plan.txt", "text": "new", "overwrite": False})
COPY = a_tool(
    "core/fs.copy",
    "read:fs",
    "write:fs",
    guarded=(("source", ArgumentRole.PATH_READ), ("destination", ArgumentRole.PATH_WRITE)),
)
COPY_OVER = a_call(COPY, {"source": "a", "destination": "b", "overwrite": True})
COPY_OUT = a_call(COPY, {"source": "secrets/a", "destination": "a", "overwrite": False})
REPORT = a_call(a_tool("docs/write_file", "mcp:docs"), {"path": "/srv/docs/reports/a.md"})
OUTSIDE = a_call(a_tool("docs/write_file", "mcp:docs"), {"path": "/srv/docs/reports/../a.md"})
CUSTOMER = a_call(a_tool("crm/update", "mcp:crm"), {})
OVERWRITE = a_call(WRITE_TEXT, {"path": "plan.txt", "text": "new", "overwrite": True})
DECISIONS = [
    ("Open one API to the first-run principal", call("local", GET), Effect.ALLOW),
    ("Open one API to the first-run principal", call("local", POST), Effect.DENY),
    ("A researcher and a writer", call("researcher-7", GET), Effect.ALLOW),
    ("A researcher and a writer", call("researcher-7", a_call(WRITE_TEXT, {"path": "a"})), Effect.DENY),
    ("A researcher and a writer", call("writer", a_call(WRITE_TEXT, {"path": "a"})), Effect.ALLOW),
    ("A researcher and a writer", call("local", a_call(READ_TEXT, {"path": "a"})), Effect.DENY),
    ("Overwriting needs a person", call("bot", WRITE), Effect.ALLOW),
    ("Overwriting needs a person", call("bot", OVERWRITE), Effect.REQUIRE_APPROVAL),
    ("Overwriting needs a person", call("bob", WRITE), Effect.DENY),
    ("Overwriting needs a person", call("bot", COPY_OVER), Effect.REQUIRE_APPROVAL),
    ("A folder that no tool may touch", call("local", COPY_OUT), Effect.DENY),
    ("A folder that no tool may touch", call("local", a_call(READ_TEXT, {"path": "secrets/a"})), Effect.DENY),
    ("A folder that no tool may touch", call("local", a_call(READ_TEXT, {"path": "notes/secrets"})), Effect.ALLOW),
    ("Tools of a source", call("local", REPORT), Effect.ALLOW),
    ("Tools of a source", call("local", OUTSIDE), Effect.DENY),
    ("Tools of a source", call("local", CUSTOMER), Effect.REQUIRE_APPROVAL),
    ("Tools of a source", call("local", a_call(a_tool("github/get", "mcp:github"), {})), Effect.DENY),
    ("Ask a person before a message goes out", call("bot", SEND), Effect.REQUIRE_APPROVAL),
    ("Ask a person before a message goes out", call("bot", QUIET), Effect.ALLOW),
    ("Deletions, planned and bounded", call("local", DELETE), Effect.REQUIRE_PLAN),
    ("Deletions, planned and bounded", call("cleaner", a_call(DELETE_PATH, {"path": "tmp/x"})), Effect.ALLOW),
    ("Deletions, planned and bounded", call("cleaner", a_call(DELETE_PATH, {"path": "src/x"})), Effect.DENY),
    ("Deletions, planned and bounded", call("cleaner", a_call(DELETE_PATH, {"path": "tmp/../src/x"})), Effect.DENY),
    ("Commands", call("local", a_call(RUN, {"argv": ["ls"]})), Effect.ALLOW),
    ("Commands", call("local", a_call(RUN, {"argv": ["xxd", "-l", "64", "a.bin"]})), Effect.ALLOW),
    ("Commands", call("local", a_call(RUN, {"argv": ["xxd", "a.bin", "out"]})), Effect.DENY),
    ("Commands", call("local", a_call(RUN, {"argv": ["xxd", "/etc/shadow"]})), Effect.DENY),
    (
        "A local service",
        call("local", a_call(REQUEST, {"url": "http://127.0.0.1:8188/x", "method": "POST"})),
        Effect.ALLOW,
    ),
    ("A local service", call("local", a_call(REQUEST, {"url": "http://127.0.0.1:22/x"})), Effect.DENY),
    ("Rates, slots and quotas", call("local", GET), Effect.ALLOW),
]


@pytest.mark.parametrize(("name", "planned", "effect"), DECISIONS)
def test_every_example_has_its_documented_effect(name: str, planned: PlannedCall, effect: Effect) -> None:
    assert PolicySnapshot.load(EXAMPLES[name]).decide(planned).effect is effect


def test_the_example_of_limits_gives_the_call_its_limits() -> None:
    limits = PolicySnapshot.load(EXAMPLES["Rates, slots and quotas"]).decide(call("local", GET)).limits
    assert [limit.id.split("|")[0] for limit in limits] == ["each-agent", "web", "everything"]


def test_no_example_goes_untold() -> None:
    assert set(EXAMPLES) == {name for name, _, _ in DECISIONS}
