"""A canary goes into every door of a serving hub and is looked for at every exit but the answer's own value.

Doors: arguments (under telling names, in URLs, headers, bodies, nested, in the wrong place), metadata, labels, purpose,
the environment and the configuration, the exceptions of a custom tool, the error bodies of an upstream. Exits: logs
(JSON and console, everything shown), spans, metrics, errors, evidence, plans, the bytes of the audit files, statuses.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc.aio
import pytest
import structlog
from google.protobuf.message import Message
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.fakes.http_server import always, response, serving
from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from toolhub.v1 import audit_service_pb2, call_pb2, registry_service_pb2, tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.telemetry import logs, span_recording
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

CANARY = f"c4n{secrets.token_hex(12)}"
"""Neither known to the hub nor of a telling shape: the names it stands under give it away."""
CONFIGURED = f"c0nf{secrets.token_hex(12)}"
"""A constructor argument of the custom tool, under a telling name; it turns up without one."""
IN_ENVIRONMENT = f"3nv{secrets.token_hex(12)}"
SHAPED = f"ghp_{secrets.token_hex(18)}"
"""Of a telling shape: hidden wherever it stands."""
HUB_KEY = f"thk_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
"""What a key of this very hub looks like."""


class LeakyTool(Tool["LeakyTool.In", "LeakyTool.Out"]):
    """A custom tool that says in every way what it must not."""

    name = "acme/leaky.call"
    description = "Fail in a way that tells secrets."

    class In(ToolInput, frozen=True):
        how: str
        api_key: str = ""

    class Out(ToolOutput, frozen=True):
        done: bool

    def __init__(self, api_key: str) -> None:
        self._api_key = api_key

    async def run(self, args: In, context: ToolContext) -> Out:
        leak = f"login with {self._api_key} failed; password={args.api_key}; {SHAPED}"
        if args.how == "crash":
            raise RuntimeError(leak)
        if args.how == "refuse":
            raise refuse(ErrorKind.EXECUTION_ERROR, leak, retry_after_s=1.0, answer={"token": args.api_key, "t": leak})
        logging.getLogger("acme").warning("calling with %s and %s", self._api_key, {"api_key": args.api_key})
        structlog.get_logger("acme").debug("calling", api_key=args.api_key, text=leak)
        context.proves(EvidenceType.TOOL, f"acme:{self._api_key}", leak, login=leak, token=args.api_key)
        return self.Out(done=True)


@dataclass
class HubOutput:
    """Everything that left the hub, by exit."""

    text: io.StringIO
    spans: InMemorySpanExporter
    answers: list[tuple[str, bytes]] = field(default_factory=list)

    def keep(self, name: str, message: Message) -> None:
        self.answers.append((name, message.SerializeToString() + str(message).encode()))

    async def all(self, hub: RunningHub) -> Iterator[tuple[str, bytes]]:
        await hub.events()  # what is still in memory reaches the disk
        hub.hub.observing.tracing.flush()
        paths = Paths(hub.hub.settings)
        files = [*paths.data_dir.glob("audit*.db*"), paths.audit_checkpoints]
        assert {file.name for file in files} >= {"audit.db", "audit.db-wal", "audit-checkpoints.jsonl"}
        listed = await hub.audit.ListEvents(audit_service_pb2.ListEventsRequest(page_size=1_000))
        snapshot = await hub.registry.GetSnapshot(registry_service_pb2.GetSnapshotRequest(view=tool_pb2.TOOL_VIEW_FULL))
        return iter(
            [
                *self.answers,
                *((file.name, file.read_bytes()) for file in files),
                ("logs", self.text.getvalue().encode()),
                ("spans", "".join(span.to_json() for span in self.spans.get_finished_spans()).encode()),
                ("metrics", hub.hub.observing.metrics.exposition()),
                ("events", str(listed).encode()),
                ("snapshot", str(snapshot).encode()),
            ]
        )

    async def leaks(self, hub: RunningHub, *secret: str) -> list[tuple[str, bytes, str]]:
        """Each way out with a spelling of a secret in it, and what stands around it."""
        return [
            (name, spelling, data[max(0, at - 300) : at + 300].decode("utf-8", "replace"))
            for name, data in await self.all(hub)
            for canary in secret
            for spelling in spellings(canary)
            if (at := data.find(spelling)) >= 0
        ]


def spellings(canary: str) -> list[bytes]:
    raw = canary.encode()
    return [raw, raw[:16], base64.b64encode(raw)[:20], base64.b64encode(b":" + raw)[4:24], quote(canary).encode()]


@pytest.fixture(params=["json", "console"])
def hub_output(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubOutput]:
    """Logs and spans of the hub that is started next, at their most talkative."""
    kept = HubOutput(io.StringIO(), InMemorySpanExporter())
    configure, root = logs.configure_logging, logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def configured(*, redactor: Any, **_: Any) -> None:
        configure(level="DEBUG", form=request.param, redactor=redactor, stream=kept.text)

    monkeypatch.setattr("toolhub_service.app.wiring.telemetry.configure_logging", configured)
    monkeypatch.setattr(span_recording, "otlp_exporter", lambda _: kept.spans)
    monkeypatch.setenv("ACME_SERVICE_TOKEN", IN_ENVIRONMENT)
    yield kept
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


@asynccontextmanager
async def talkative_hub(tmp_path: Path, *ports: int) -> AsyncIterator[RunningHub]:
    """A hub with a leaky tool, every call logged and traced, and egress to `ports` of loopback."""
    policy = f"""
extends: none
grants:
  - {{principals: ["*"], capabilities: [read:fs, write:fs, execute:command, network]}}
roles:
  - {{principals: [local], roles: [agent, operator, auditor]}}
egress:
  - {{hosts: ["127.0.0.1"], ports: [{", ".join(map(str, ports or (9,)))}], methods: [GET, POST], cidrs: [127.0.0.0/8]}}
commands:
  - {{name: echo, path: /usr/bin/echo, positionals: ".*", flags: [{{flag: --password, value: ".*"}}]}}
"""
    module = f"{__name__}:LeakyTool" if __name__.startswith("tests.") else "tests.security.test_canary_wire:LeakyTool"
    settings = {
        "logs": {"level": "debug", "calls": True},
        "tracing": {"otlp_endpoint": "http://127.0.0.1:9"},
        "results": {"show_raw": True},
        "tools": {
            "trusted_namespaces": ["tests.security"],
            "custom": [{"tool": module, "args": {"api_key": CONFIGURED}}],
        },
    }
    async with running_hub(tmp_path, policy=policy, settings=settings) as hub:
        yield hub


async def invoke(hub: RunningHub, hub_output: HubOutput, tool: str, args: Mapping[str, Any], **fields: Any) -> None:
    """The call and its plan; what came back is kept, but for what is owed: value, raw and the name of the tool."""
    metadata = fields.pop("metadata", ())
    for mode in (call_pb2.INVOKE_MODE_EXECUTE, call_pb2.INVOKE_MODE_DRY_RUN):
        asked = request(tool, args, mode=mode, **fields)
        try:
            answer = await hub.stub.Invoke(asked, timeout=CALL_TIMEOUT_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            hub_output.answers.append((f"status of {tool}", trailers_of(error)))
            continue
        for owed in ("tool", "result_json", "raw_json"):
            answer.result.ClearField(owed) if mode == call_pb2.INVOKE_MODE_EXECUTE else answer.plan.ClearField("tool")
        hub_output.keep(f"{tool} {mode}", answer)


def trailers_of(error: grpc.aio.AioRpcError) -> bytes:
    return (error.details() or "").encode() + repr(error.trailing_metadata()).encode()


ARGUMENTS: list[tuple[str, Mapping[str, Any]]] = [
    ("core/util.json.select", {"json": {"a": [{"client_secret": CANARY}], "password": CANARY}, "path": "a"}),
    ("core/util.json.select", {"json": {"cfg": f"password={CANARY}"}, "path": "cfg"}),
    ("core/util.json.select", {"json": {}, "path": "a", "apiKey": CANARY}),
    ("core/util.json.select", {"json": {"token": CANARY}, "path": "][", "language": "jsonpath"}),
    ("core/util.json.select", {"json": {}, "path": "a", "language": {"secret": CANARY}}),
    ("core/util.template.render", {"template": "{{x}", "data": {"access_token": CANARY}}),
    ("core/util.hash.sha256Text", {"text": f"Authorization: Bearer {CANARY}"}),
    ("core/util.hash.sha256Text", {"token": CANARY}),
    ("core/util.hash.sha256Text", {"text": SHAPED}),
    ("core/util.hash.sha256Text", {"text": HUB_KEY}),
    ("core/fs.writeText", {"path": "env.txt", "text": f"API_KEY={CANARY}\nexport AWS_SECRET_ACCESS_KEY='{CANARY}'\n"}),
    ("core/fs.writeText", {"path": "c.json", "text": json.dumps({"db": {"password": CANARY}}), "overwrite": True}),
    ("core/fs.readText", {"path": f"../{SHAPED}"}),
    ("core/fs.readText", {"path": SHAPED}),
    ("core/fs.readText", {"path": 5, "password": CANARY}),
    ("core/exec.run", {"argv": ["echo", f"--password={CANARY}"]}),
    ("core/exec.run", {"argv": ["echo", "--token", CANARY]}),
    ("core/exec.run", {"argv": ["curl", "-u", f"me:{CANARY}", "https://example.com"]}),
    ("core/exec.run", {"command": f"echo 'password: {CANARY}'"}),
    ("core/exec.run", {"argv": ["echo"], "env": {"API_KEY": CANARY}}),
    ("core/nothing.here", {"headers": {"X-Api-Key": CANARY}, "nested": [{"deep": {"private_key": CANARY}}]}),
    (f"core/{SHAPED}", {}),
]


@pytest.mark.promise("secrets.nowhere")
async def test_a_canary_in_arguments_is_disclosed_nowhere(tmp_path: Path, hub_output: HubOutput) -> None:
    async with talkative_hub(tmp_path) as hub:
        for tool, args in ARGUMENTS:
            await invoke(hub, hub_output, tool, args)
        assert len({chained.event.call_id for chained in await hub.events()}) == 2 * len(ARGUMENTS)
        assert await hub_output.leaks(hub, CANARY, SHAPED, HUB_KEY) == []


async def test_a_canary_in_urls_headers_and_bodies_is_disclosed_nowhere(tmp_path: Path, hub_output: HubOutput) -> None:
    angry = {"error": f"bad key {SHAPED}", "token": CANARY, "you_sent": {"authorization": f"Bearer {CANARY}"}}
    failing = always(response(json.dumps(angry).encode(), status=401, www_authenticate=f"Bearer {CANARY}"))
    moving = always(response(status=302, location=f"http://me:{CANARY}@127.0.0.1:1/?access_token={CANARY}"))
    headers = {"Authorization": f"Bearer {CANARY}", "X-Api-Key": CANARY, "Cookie": f"sid={CANARY}"}
    basic = base64.b64encode(f"me:{CANARY}".encode()).decode()
    async with (
        serving(failing) as server,
        serving(moving) as mover,
        talkative_hub(tmp_path, server.port, mover.port) as hub,
    ):
        for where in (
            server.url(f"/x?api_key={CANARY}&sig={CANARY}"),
            mover.url(f"/x?access_token={CANARY}"),
            f"http://me:{CANARY}@127.0.0.1:{server.port}/",
            f"http://{CANARY}@127.0.0.1:{server.port}/",
            f"http://me:{CANARY}@example.com/?token={CANARY}",
            f"ftp://me:{CANARY}@example.com/?token={CANARY}",
            f"http://me:{CANARY}@[::1/",
        ):
            for tool in ("core/http.fetchJson", "core/http.fetchText", "core/http.head", "core/http.downloadFile"):
                args = {"url": where, "headers": headers}
                await invoke(hub, hub_output, tool, args if tool != "core/http.downloadFile" else args | {"path": "x"})
        for body in (json.dumps({"password": CANARY}), f"grant_type=password&password={CANARY}", SHAPED):
            asked = {"url": server.url("/"), "method": "POST", "body": body, "headers": headers}
            await invoke(hub, hub_output, "core/http.request", asked)
        asked = {"url": server.url("/"), "headers": {"Authorization": f"Basic {basic}"}}
        await invoke(hub, hub_output, "core/http.fetchText", asked)
        await invoke(
            hub, hub_output, "core/http.fetchText", {"url": server.url("/"), "headers": {"X-A": f"\r\n{SHAPED}"}}
        )
        assert server.asked
        assert mover.asked
        assert await hub_output.leaks(hub, CANARY, SHAPED) == []


async def test_a_canary_in_metadata_labels_and_purpose_is_disclosed_nowhere(
    tmp_path: Path, hub_output: HubOutput
) -> None:
    async with talkative_hub(tmp_path) as hub:
        for metadata in (
            [("authorization", f"Bearer {CANARY}")],
            [("authorization", f"Basic {CANARY}"), ("cookie", CANARY)],
            [("x-api-key", CANARY)],
            [("x-api-key", HUB_KEY)],
            [("x-secret-token", CANARY), ("baggage", f"token={CANARY}"), ("x-note-bin", CANARY.encode())],
        ):
            await invoke(hub, hub_output, "core/util.time.now", {}, metadata=metadata)
        await invoke(hub, hub_output, "core/util.time.now", {}, labels={"api_key": CANARY, "note": SHAPED})
        await invoke(hub, hub_output, "core/util.time.now", {}, purpose=f"log in with password={CANARY} and {SHAPED}")
        # The answer names the request, which its caller has named so, to that caller alone.
        named = await hub.invoke("core/util.time.now", {}, request_id=SHAPED, session_id=SHAPED, task_id=SHAPED)
        assert named.request_id == SHAPED
        await invoke(hub, hub_output, "core/util.time.now", {}, agent_id=SHAPED)
        await invoke(hub, hub_output, "core/util.time.now", {}, plan_digest=f"v1.{SHAPED}")
        for ask in (
            hub.stub.GetTool(pb.GetToolRequest(name=SHAPED)),
            hub.stub.ListTools(pb.ListToolsRequest(page_token=SHAPED)),
            hub.registry.UnregisterTool(registry_service_pb2.UnregisterToolRequest(name=f"acme/{SHAPED}")),
            hub.audit.ListEvents(audit_service_pb2.ListEventsRequest(page_token=SHAPED)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask
            hub_output.answers.append(("status", trailers_of(refused.value)))
        assert await hub_output.leaks(hub, CANARY, SHAPED, HUB_KEY) == []


@pytest.mark.promise("secrets.nowhere")
async def test_a_canary_in_failures_of_a_custom_tool_comes_out_nowhere(tmp_path: Path, hub_output: HubOutput) -> None:
    async with talkative_hub(tmp_path) as hub:
        for how in ("crash", "refuse", "talk"):
            await invoke(hub, hub_output, "acme/leaky.call", {"how": how, "apiKey": CANARY})
        assert "calling with" in hub_output.text.getvalue()
        assert "RuntimeError" in hub_output.text.getvalue(), "operators find the failure in the log"
        assert await hub_output.leaks(hub, CANARY, SHAPED, CONFIGURED) == []


async def test_a_secret_of_the_environment_is_disclosed_nowhere_even_under_an_innocent_name(
    tmp_path: Path, hub_output: HubOutput
) -> None:
    async with talkative_hub(tmp_path) as hub:
        await invoke(hub, hub_output, "core/util.hash.sha256Text", {"text": f"the word is {IN_ENVIRONMENT}"})
        await invoke(hub, hub_output, "core/fs.readText", {"path": f"{IN_ENVIRONMENT}.txt"})
        await invoke(hub, hub_output, "acme/leaky.call", {"how": "talk", "apiKey": IN_ENVIRONMENT})
        keys = [Paths(hub.hub.settings).audit_key.read_text().split()[-1], Paths(hub.hub.settings).plan_key.read_text()]
        assert await hub_output.leaks(hub, IN_ENVIRONMENT, *keys) == []
