"""Every kind of error that today's parts can raise, raised over the wire, with what a model needs to do better."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from tests.fakes.http_server import RawServer, RecordedRequest, response, serving
from tests.free_port import free_port
from tests.hub import OPEN_POLICY, RunningHub, running_hub
from tests.overtaken import overtaken
from tests.rpc.sample_tools import BreaksItsSchema, Crashes, Echo, Waits, WaitsToWrite
from toolhub.v1 import error_pb2, result_pb2
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.domain.errors.kinds import ERROR_KINDS
from toolhub_service.domain.errors.spec import COMMON_DETAILS
from toolhub_service.domain.tool import ToolState

POLICY = (
    OPEN_POLICY
    + """
rules:
  - {{id: ask-first, effect: REQUIRE_APPROVAL, tools: [core/fs.move], reason: Moves are approved.}}
limits:
  - {{id: one-a-minute, tools: [core/util.hash.sha256Text], rate_per_s: 0.0166, burst: 1}}
egress:
  - {{hosts: [127.0.0.1], ports: [{port}, {closed}], methods: [GET, HEAD, POST], cidrs: [127.0.0.0/8]}}
commands:
  - {{name: flood, path: /usr/bin/yes}}
sandbox: {{max_write_bytes: 100}}
"""
)

NAMED = {kind: spec.detail_names for kind, spec in ERROR_KINDS.items()}
NAMED[ErrorKind.OUTCOME_UNKNOWN] |= NAMED[ErrorKind.TIMEOUT]

SLOW, BIG, BROKEN = "/slow", "/big", "/broken"


async def answer(asked: RecordedRequest, writer: asyncio.StreamWriter) -> bool:
    if asked.target == SLOW:
        await asked.reader.read()
        return False
    body = json.dumps(["x" * 4_000]).encode() if asked.target == BIG else b"<p>no JSON, sorry</p>"
    writer.write(response(body, status=500 if asked.target == BROKEN else 200, content_type="text/html"))
    await writer.drain()
    return True


@dataclass
class ErrorsHarness:
    """A hub whose policy has a gate for each kind of error, and a web server of its own."""

    running: RunningHub
    web: RawServer
    closed: int

    async def call(self, tool: str, args: Mapping[str, Any] | None = None, **fields: Any) -> result_pb2.ToolResult:
        return await self.running.invoke(tool, args, **fields)

    async def late(self, tool: str) -> result_pb2.ToolResult:
        """The result of a call that has begun and does not end in time."""

        def has_begun(result: result_pb2.ToolResult) -> bool:
            return "default_timeout_s" in result.error.details or "cause" in result.error.details

        return await overtaken(
            lambda timeout_s: self.call(tool, budget={"timeout_s": timeout_s}), has_begun, first_s=0.05
        )

    async def fetch(self, target: str, tool: str = "core/http.fetchJson", **args: Any) -> result_pb2.ToolResult:
        budget = {"max_retries": 0}
        return await self.call(tool, {"url": self.web.url(target), **args}, budget=budget, request_id="web")

    async def twice(self, tool: str, args: Mapping[str, Any], **fields: Any) -> result_pb2.ToolResult:
        assert (await self.call(tool, args, **fields)).ok
        return await self.call(tool, args, **fields)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ErrorsHarness]:
    closed = free_port()
    async with (
        serving(answer) as web,
        running_hub(
            tmp_path,
            policy=POLICY.format(port=web.port, closed=closed),
            settings={"tools": {"disabled": ["core/util.time.now"]}, "budget": {"breaker_min_calls": 3}},
            tools=[Echo(), BreaksItsSchema(), Crashes(), Waits(), WaitsToWrite()],
        ) as running,
    ):
        yield ErrorsHarness(running, web, closed)


async def quarantined(harness: ErrorsHarness) -> result_pb2.ToolResult:
    harness.running.hub.toolbox.catalog.set_state("test/text.echo", ToolState.QUARANTINED, "its definition changed")
    return await harness.call("test/text.echo")


async def too_large_a_file(harness: ErrorsHarness) -> result_pb2.ToolResult:
    return await harness.call("core/fs.writeText", {"path": "big.txt", "text": "x" * 101})


async def broken_audit(harness: ErrorsHarness) -> result_pb2.ToolResult:
    await harness.running.hub.audit.close()
    return await harness.call("core/fs.writeText", {"path": "a.txt", "text": "x"})


async def key_of_another_call(harness: ErrorsHarness) -> result_pb2.ToolResult:
    same = {"idempotency_key": "key-1", "request_id": "keyed"}
    assert (await harness.call("core/fs.writeText", {"path": "a.txt", "text": "one"}, **same)).ok
    return await harness.call("core/fs.writeText", {"path": "a.txt", "text": "two"}, **same)


async def rest(harness: ErrorsHarness) -> result_pb2.ToolResult:
    url = {"url": f"http://127.0.0.1:{harness.closed}/"}
    for _ in range(3):
        await harness.call("core/http.head", url, budget={"max_retries": 0})
    return await harness.call("core/http.head", url)


@dataclass(frozen=True)
class Case:
    provoke: Callable[[ErrorsHarness], Awaitable[result_pb2.ToolResult]]
    details: tuple[str, ...] = ()
    """Keys that must be there."""
    message: str = ""
    """Part of the message: what to do."""
    violations: tuple[str, ...] = ()
    """Keywords that must be reported."""
    retry_after: bool = False
    upstream: bool = False
    retryable: bool | None = None


HIDDEN: dict[str, Any] = {"agent_id": "somebody-else"}
ONE_CALL = {"budget": {"max_tool_calls": 1}, "request_id": "one"}
POLICY_FACTS = ("rule_id", "policy_revision")

CASES: dict[ErrorKind, Case] = {
    ErrorKind.TOOL_NOT_FOUND: Case(
        lambda harness: harness.call("core/fs.readTxt"), ("did_you_mean",), message="core/fs.readText"
    ),
    ErrorKind.TOOL_QUARANTINED: Case(quarantined, ("reason",), message="another tool"),
    ErrorKind.TOOL_UNAVAILABLE: Case(
        lambda harness: harness.call("core/util.time.now"), ("reason", "state"), message="disabled by configuration"
    ),
    ErrorKind.INPUT_SCHEMA_INVALID: Case(
        lambda harness: harness.call("core/fs.readText", {"paht": "a.txt", "maxBytes": "5"}),
        violations=("required", "additionalProperties", "type"),
        message="path",
    ),
    ErrorKind.INVALID_INPUT: Case(
        lambda harness: harness.call("core/fs.writeText", {"path": "a", "text": "b"}, purpose=""),
        ("field",),
        message="`purpose`",
    ),
    ErrorKind.POLICY_DENIED: Case(
        lambda harness: harness.call("core/fs.readText", {"path": "a"}, permissions=["write:fs"]),
        (*POLICY_FACTS, "missing_capabilities", "remedy"),
        message="read:fs",
    ),
    ErrorKind.PERMISSION_DENIED: Case(
        lambda harness: harness.call("test/text.echo", **HIDDEN),
        (*POLICY_FACTS, "principal", "remedy"),
        message="agent_id",
    ),
    ErrorKind.APPROVAL_REQUIRED: Case(
        lambda harness: harness.call("core/fs.move", {"source": "a", "destination": "b"}),
        (*POLICY_FACTS, "approval"),
        message="Moves are approved.",
    ),
    ErrorKind.PLAN_REQUIRED: Case(
        lambda harness: harness.call("core/fs.deletePath", {"path": "a", "confirm": True}),
        POLICY_FACTS,
        message="DRY_RUN",
    ),
    ErrorKind.PATH_OUTSIDE_SANDBOX: Case(
        lambda harness: harness.call("core/fs.readText", {"path": "../../etc/passwd"}), (*POLICY_FACTS, "argument")
    ),
    ErrorKind.NOT_FOUND: Case(
        lambda harness: harness.call("core/fs.readText", {"path": "missing.txt"}), message="missing.txt"
    ),
    ErrorKind.ALREADY_EXISTS: Case(
        lambda harness: harness.twice("core/fs.writeText", {"path": "a.txt", "text": "x"}, request_id="twice"),
        message="overwrite",
    ),
    ErrorKind.FILE_TOO_LARGE: Case(too_large_a_file, ("max_bytes",), message="100"),
    ErrorKind.HTTP_DISALLOWED_HOST: Case(
        lambda harness: harness.call("core/http.fetchText", {"url": "https://example.com/"}),
        (*POLICY_FACTS, "argument", "allowed_hosts"),
        message="example.com",
    ),
    ErrorKind.HTTP_TIMEOUT: Case(lambda harness: harness.fetch(SLOW, timeoutMs=1_000), retryable=True),
    ErrorKind.HTTP_TOO_LARGE: Case(lambda harness: harness.fetch(BIG, maxBytes=1_024), ("max_bytes",)),
    ErrorKind.NETWORK_ERROR: Case(
        lambda harness: harness.call(
            "core/http.head", {"url": f"http://127.0.0.1:{harness.closed}/"}, budget={"max_retries": 0}
        ),
        retryable=True,
    ),
    ErrorKind.IO_ERROR: Case(broken_audit, ("component",), message="audit log", retry_after=True, retryable=True),
    ErrorKind.EXECUTION_ERROR: Case(
        lambda harness: harness.call("core/exec.run", {"argv": ["flood"]}, request_id="flood"),
        ("command", "stdout", "stderr"),
    ),
    ErrorKind.BUDGET_EXCEEDED: Case(
        lambda harness: harness.twice("test/text.echo", {}, **ONE_CALL), ("max_tool_calls", "used_tool_calls")
    ),
    ErrorKind.RATE_LIMITED: Case(
        lambda harness: harness.twice("core/util.hash.sha256Text", {"text": "x"}), retry_after=True, retryable=True
    ),
    ErrorKind.CIRCUIT_OPEN: Case(rest, ("waits_for",), retry_after=True, retryable=True, message="paused"),
    ErrorKind.TIMEOUT: Case(lambda harness: harness.late("test/text.wait"), ("default_timeout_s",), retryable=True),
    ErrorKind.UPSTREAM_ERROR: Case(lambda harness: harness.fetch(BROKEN), upstream=True),
    ErrorKind.OUTPUT_SCHEMA_INVALID: Case(lambda harness: harness.call("test/text.lie"), violations=("maxLength",)),
    ErrorKind.OUTCOME_UNKNOWN: Case(
        lambda harness: harness.late("test/text.waitToWrite"), ("cause",), message="Check", retryable=False
    ),
    ErrorKind.IDEMPOTENCY_CONFLICT: Case(key_of_another_call, ("first_call_id", "differs"), retryable=False),
    ErrorKind.INTERNAL: Case(lambda harness: harness.call("test/text.crash"), message="another tool", retryable=False),
    ErrorKind.TOOL_CHANGED: Case(
        lambda harness: harness.call("test/text.echo", expected_tool_digest="0" * 64),
        ("tool_digest", "expected_tool_digest"),
        message="Get the tool again",
        retryable=False,
    ),
}

NOT_RAISABLE_YET = {
    ErrorKind.APPROVAL_REJECTED: "nobody can decide an approval before ApprovalService is built",
    ErrorKind.CANCELLED: "a cancelled unary call or stream ends with gRPC's CANCELLED; the audit log has the kind",
}


@pytest.mark.promise("errors.teach")
def test_every_kind_is_raised_or_has_a_reason_why_not() -> None:
    assert CASES.keys() | NOT_RAISABLE_YET.keys() == set(ErrorKind)
    assert not CASES.keys() & NOT_RAISABLE_YET.keys()


@pytest.mark.promise("errors.teach")
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.value)
async def test_an_error_kind_on_the_wire_states_the_remedy(harness: ErrorsHarness, kind: ErrorKind) -> None:
    case = CASES[kind]
    result = await case.provoke(harness)
    error = result.error
    assert error_pb2.ErrorKind.Name(error.kind) == f"ERROR_KIND_{kind.value}", error.message
    assert not result.ok
    assert result.call_id
    assert result.evidence, "a refusal proves itself too"
    assert not result.result_json
    assert len(error.message) > 20
    assert case.message in error.message
    details = MessageToDict(error.details)
    assert set(case.details) <= details.keys() <= NAMED[kind] | COMMON_DETAILS, details
    assert set(case.violations) <= {violation.keyword for violation in error.violations}
    assert error.HasField("retry_after") == case.retry_after
    assert error.HasField("upstream") == case.upstream
    if case.retryable is not None:
        assert error.retryable is case.retryable
    assert "Traceback" not in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.promise("errors.typed-refusals")
async def test_refusal_by_policy_names_its_rule_in_a_message_of_its_own(harness: ErrorsHarness) -> None:
    result = await harness.call("core/fs.readText", {"path": "a"}, permissions=["write:fs"])
    rule, details = result.error.rule, MessageToDict(result.error.details)
    assert rule.rule_id == details["rule_id"] == "permissions"
    assert rule.policy_revision == details["policy_revision"] == harness.running.hub.policy.revision
    assert rule.remedy == details["remedy"]
    assert rule.missing_capabilities == ["read:fs"]
    assert not result.error.HasField("approval")
    unruled = await harness.call("core/fs.readText", {"path": "missing.txt"})
    assert not unruled.error.HasField("rule")


@pytest.mark.promise("errors.remedy-can-be-pasted")
async def test_remedy_of_a_refusal_pasted_into_the_policy_lets_the_same_call_pass(tmp_path: Path) -> None:
    async with serving(answer) as web, running_hub(tmp_path) as running:
        url = {"url": web.url("/")}
        refused = await running.invoke("core/http.fetchText", url)
        assert not refused.ok
        advice, _, lines = str(MessageToDict(refused.error.details)["remedy"]).partition("\n")
        assert "policy.yaml" in advice
        assert running.hub.policy.replace(lines).applied
        assert (await running.value("core/http.fetchText", url))["status"] == 200
