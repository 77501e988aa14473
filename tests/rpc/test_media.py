"""core/media.send through a whole hub to a real SMTP server and a real webhook receiver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.free_port import free_port
from tests.hub import RunningHub, request, running_hub
from tests.rpc.media_receivers import PASSWORD, TOKEN, Receivers, attached, posted_files, receiving
from tests.rpc.test_approvals import API_KEYS, ApprovalsHarness
from toolhub.v1 import error_pb2
from toolhub_service.app.config_files.paths import Paths

SEND = "core/media.send"
GRANT = """
extends: none
grants:
  - {principals: [local, robot], capabilities: [read:fs, write:fs, network, send:message]}
"""
LET = """
roles:
  - {principals: [local], roles: [agent, operator, approver, auditor]}
rules:
  - {id: may-send, effect: ALLOW, tools: [core/media.send]}
"""
POLICY_WITH_APPROVERS = """
roles:
  - {principals: [judge], roles: [approver]}
rules:
  - {id: whatever, effect: ALLOW, tools: ["*"]}
"""
KINDS = error_pb2.ErrorKind


@asynccontextmanager
async def media_hub(
    home: Path, urls: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, policy: str = LET, **settings: Any
) -> AsyncIterator[RunningHub]:
    """A hub with a channel for each URL; `texts` takes no files, `pictures` only png."""
    channels = []
    for name, url in urls.items():
        monkeypatch.setenv(f"CHANNEL_{name.upper()}", url)
        channel: dict[str, Any] = {"name": name, "url": {"env": f"CHANNEL_{name.upper()}"}}
        more: dict[str, dict[str, Any]] = {"texts": {"attachments": False}, "pictures": {"extensions": ["png"]}}
        channels.append(channel | more.get(name, {}))
    async with running_hub(home, policy=GRANT + policy, settings={"channels": channels, **settings}) as hub:
        yield hub


@pytest.fixture
async def receivers() -> AsyncIterator[Receivers]:
    async with receiving() as opened:
        yield opened


async def put(hub: RunningHub, path: str, content: bytes, principal: str = "local") -> None:
    folder = hub.workspace("work", principal)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)


@pytest.mark.promise("media.delivered-as-checked")
async def test_a_message_and_its_files_arrive_by_mail_and_webhook_and_the_result_lists_them(
    tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"mail": receivers.mail("team@example.com"), "hook": receivers.hook("ok")}
    async with media_hub(tmp_path, urls, monkeypatch) as hub:
        files = {"out/report.pdf": bytes(range(256)) * 400, "数据.csv": "名,值\n一,1\n".encode()}
        for path, content in files.items():
            await put(hub, path, content)
        big = await hub.invoke("core/fs.writeText", {"path": "log.txt", "text": "line\n" * 20_000}, request_id="work")
        assert big.ok
        read = await hub.invoke("core/fs.readText", {"path": "log.txt", "maxBytes": 1_024}, request_id="work")
        (kept,) = read.artifacts
        args = {"message": "Die Zahlen:\nfertig ✓", "title": "Woche 48", "filePaths": list(files)}
        sent = await hub.value(SEND, args | {"channel": "mail", "artifactIds": [kept.artifact_id]}, request_id="work")
        (mail,) = receivers.mails
        assert (mail["Subject"], mail["To"]) == ("Woche 48", "team@example.com")
        contents = {name: content for name, (_, content) in attached(mail).items()}
        assert contents == {"report.pdf": files["out/report.pdf"], "数据.csv": files["数据.csv"]} | {
            "log.txt": b"line\n" * 20_000
        }
        assert attached(mail)["report.pdf"][0] == "application/pdf"
        assert (sent["delivered"], sent["channel"], sent["messageBytes"]) == (True, "mail", 22)
        assert [file["name"] for file in sent["files"]] == ["report.pdf", "数据.csv", "log.txt"]
        assert sent["files"][2]["sha256"] == kept.sha256
        await hub.value(SEND, args | {"channel": "hook"}, request_id="work")
        (post,) = receivers.posts
        assert (post["title"], post["message"]) == ("Woche 48", args["message"])
        assert post["headers"]["X-Token"] == TOKEN
        assert posted_files(post) == {Path(path).name: content for path, content in files.items()}


@pytest.mark.promise("media.failures-are-typed")
async def test_each_failure_is_distinguished_and_states_whether_it_may_be_sent_again(
    tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {
        "nobody": receivers.mail("nobody@example.com"),
        "later": receivers.mail("later@example.com"),
        "silent": receivers.mail("silent@example.com"),
        "login": receivers.mail("team@example.com", "wrong-Horse-78"),
        "busy": receivers.hook("503"),
        "gone": receivers.hook("404"),
        "away": receivers.hook("away"),
        "cut": receivers.hook("cut"),
        "closed": f"json://127.0.0.1:{free_port()}/ok",
        "unknown": "no-such-service://nowhere/token-12345678",
    }
    expected = {
        "nobody": ("UPSTREAM_ERROR", False, 550),
        "later": ("UPSTREAM_ERROR", True, 451),
        "silent": ("OUTCOME_UNKNOWN", False, 0),
        "login": ("UPSTREAM_ERROR", False, 535),
        "busy": ("UPSTREAM_ERROR", True, 503),
        "gone": ("UPSTREAM_ERROR", False, 404),
        "away": ("UPSTREAM_ERROR", False, 302),
        "cut": ("OUTCOME_UNKNOWN", False, 0),
        "closed": ("NETWORK_ERROR", True, 0),
        "unknown": ("TOOL_UNAVAILABLE", False, 0),
    }
    async with media_hub(tmp_path, urls, monkeypatch) as hub:
        results = [await hub.invoke(SEND, {"channel": name, "message": "hello"}) for name in urls]
        errors = {name: result.error for name, result in zip(urls, results, strict=True)}
        outcomes = {
            name: (KINDS.Name(error.kind).removeprefix("ERROR_KIND_"), error.retryable, error.upstream.status)
            for name, error in errors.items()
        }
        assert outcomes == expected
        assert len(receivers.mails) == 1, "one reached DATA"
        assert [post["path"] for post in receivers.posts] == ["503", "404", "away", "cut"], "no redirect is followed"


@pytest.mark.promise("media.channels-only")
async def test_files_that_are_not_the_callers_to_send_are_refused_and_nothing_is_sent(
    tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"hook": receivers.hook("ok"), "texts": receivers.hook("ok"), "pictures": receivers.hook("ok")}
    async with media_hub(tmp_path, urls, monkeypatch) as hub:
        await put(hub, "a.txt", b"a")
        await put(hub, "run.sh", b"#!")
        await put(hub, "noext", b"")
        await put(hub, "big.zip", b"")
        with (hub.workspace("work") / "big.zip").open("ab") as big:
            big.truncate(20 * 1024 * 1024 + 1)
        (hub.workspace("work") / "link.txt").symlink_to("/etc/passwd")
        (hub.workspace("work") / "folder.txt").mkdir()
        refused = {
            "PATH_OUTSIDE_SANDBOX": [["/etc/passwd"], ["../x.txt"], ["link.txt"], ["a.txt", "../../hub/audit.key"]],
            "INVALID_INPUT": [["run.sh"], ["noext"], ["folder.txt"]],
            "NOT_FOUND": [["missing.txt"]],
            "FILE_TOO_LARGE": [["big.zip"]],
            "INPUT_SCHEMA_INVALID": [["a.txt"] * 11],
        }
        for kind, cases in refused.items():
            for paths in cases:
                args = {"message": "m", "channel": "hook", "filePaths": paths}
                result = await hub.invoke(SEND, args, request_id="work")
                assert KINDS.Name(result.error.kind) == f"ERROR_KIND_{kind}", paths
        others: list[tuple[str, dict[str, Any]]] = [
            ("INVALID_INPUT", {"channel": "texts", "filePaths": ["a.txt"]}),
            ("INVALID_INPUT", {"channel": "pictures", "filePaths": ["a.txt"]}),
            ("INVALID_INPUT", {"channel": receivers.hook("ok")[:64]}),
            ("INVALID_INPUT", {}),
            ("NOT_FOUND", {"channel": "hook", "artifactIds": ["art_of_somebody_else"]}),
            ("INVALID_INPUT", {"channel": "hook", "filePaths": ["a.txt"] * 6, "artifactIds": ["x"] * 5}),
            ("INPUT_SCHEMA_INVALID", {"channel": "hook", "url": "json://127.0.0.1/"}),
        ]
        for kind, args in others:
            result = await hub.invoke(SEND, {"message": "m"} | args, request_id="work")
            assert KINDS.Name(result.error.kind) == f"ERROR_KIND_{kind}", args
        assert receivers.posts == []


@pytest.mark.promise("media.secrets-stay")
async def test_no_secret_of_a_channel_is_in_answers_definitions_or_the_audit_log(
    tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"mail": receivers.mail("team@example.com"), "hook": receivers.hook("500")}
    async with media_hub(tmp_path, urls, monkeypatch) as hub:
        for channel, url in urls.items():
            leaked = f"{PASSWORD} {TOKEN} {url}"
            result = await hub.invoke(SEND, {"channel": channel, "message": f"hello {leaked}"}, purpose=leaked)
            assert PASSWORD not in str(result)
            assert TOKEN not in str(result)
        spec = hub.hub.toolbox.catalog.get(SEND)
        assert spec is not None
        assert "Channels: mail, hook." in spec.description
        assert await hub.events(tool=SEND)
        folder = Paths(hub.hub.settings).data_dir
    held = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for secret in (PASSWORD, TOKEN):
        assert secret.encode() not in held


@pytest.mark.promise("media.approval-by-default")
async def test_a_person_approves_what_is_sent_and_a_file_that_changed_since_asks_again(
    tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"hook": receivers.hook("ok")}
    async with media_hub(tmp_path, urls, monkeypatch, POLICY_WITH_APPROVERS, **API_KEYS) as hub:
        harness = ApprovalsHarness(hub, ("robot", "judge"))
        await put(hub, "a.txt", b"as shown", "robot")

        async def send(approval_id: str = "") -> Any:
            asked = request(SEND, {"message": "hello", "filePaths": ["a.txt"]}, request_id="work")
            asked.approval_id = approval_id
            return (await hub.stub.Invoke(asked, metadata=harness.by("robot"), timeout=60)).result

        asked = await send()
        assert asked.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
        assert (asked.error.details["rule_id"], "send:message" in asked.error.message) == ("approval_by_default", True)
        first = asked.error.details["approval_id"]
        await harness.decide(first)
        await put(hub, "a.txt", b"something else", "robot")
        again = await send(first)
        assert again.error.kind == error_pb2.ERROR_KIND_APPROVAL_REQUIRED
        assert receivers.posts == []
        await put(hub, "a.txt", b"as shown", "robot")
        sent = await send(first)
        assert sent.ok, sent.error.message
        assert posted_files(receivers.posts[0]) == {"a.txt": b"as shown"}


@pytest.mark.promise("media.cancelled-sends-no-more")
async def test_a_cancelled_call_ends_its_sender_and_a_late_one_is_unknown(
    tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with media_hub(tmp_path, {"stall": receivers.hook("stall")}, monkeypatch) as hub:
        call = asyncio.create_task(hub.invoke(SEND, {"message": "hello"}))
        await asyncio.wait_for(receivers.stalled.wait(), 60)
        call.cancel()
        await asyncio.wait_for(receivers.gone.wait(), 60)
        receivers.stalled.clear()
        receivers.gone.clear()
        timeout_s = 2.0
        while not receivers.stalled.is_set():
            result = await hub.invoke(SEND, {"message": "hello"}, budget={"timeout_s": timeout_s})
            assert result.error.kind == error_pb2.ERROR_KIND_OUTCOME_UNKNOWN
            timeout_s *= 2
        await asyncio.wait_for(receivers.gone.wait(), 60)


async def test_without_a_channel_or_its_secret_the_tool_is_listed_with_what_to_configure(tmp_path: Path) -> None:
    async with running_hub(tmp_path / "none", policy=GRANT) as hub:
        spec = hub.hub.toolbox.catalog.get(SEND)
        assert spec is not None
        assert "add one to `channels` of the settings" in spec.state_reason
    channels = [{"name": "team", "url": {"env": "NO_SUCH_VARIABLE"}}]
    async with running_hub(tmp_path / "unset", policy=GRANT + LET, settings={"channels": channels}) as hub:
        result = await hub.invoke(SEND, {"message": "hello"})
        assert result.error.kind == error_pb2.ERROR_KIND_TOOL_UNAVAILABLE
        assert "NO_SUCH_VARIABLE is not set" in json.dumps(dict(result.error.details))
