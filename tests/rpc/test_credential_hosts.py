"""The built-in HTTP tools send a caller's own credential to its configured hosts, and to no other."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from tests.fakes.http_server import RecordedRequest, response, serving
from tests.rpc.test_credentials import ALICE, BOB, DENIED, credentials_harness
from toolhub.v1 import error_pb2

POLICY = """
extends: none
grants:
  - {principals: ["*"], capabilities: [network, "read:web", "read:fs", "write:fs"]}
roles:
  - {principals: ["*"], roles: [agent]}
egress: [{hosts: [127.0.0.1], ports: [%d, %d], cidrs: [127.0.0.0/8], methods: [GET, HEAD, POST]}]
"""


class HostAnswers:
    """Returns what it was sent, in several spellings; redirects elsewhere; or refuses every caller."""

    elsewhere = ""

    async def __call__(self, asked: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        sent = asked.headers.get("authorization", "")
        path = asked.target.strip("/")
        if path == "away":
            raw = response(status=302, location=self.elsewhere)
        elif path == "same":
            raw = response(status=302, location="/echo")
        elif path.startswith("padded/"):  # the caller says how far into the answer its credential stands
            padding, _, status = path.removeprefix("padded/").partition("/")
            echo = "x" * int(padding) + sent + "y" * 16_000
            raw = response(echo.encode(), status=int(status), x_echo=echo[:1_200])
        elif path == "closed":
            raw = response(sent.encode(), status=401)
        else:
            told = {"sent": sent, "base64": base64.b64encode(sent.encode()).decode(), "parts": [sent] * 3}
            raw = response(json.dumps(told).encode(), content_type="application/json", x_echo=sent or "nothing")
        # In two parts that a secret lies across.
        half = raw.find(b"secret") + 3
        for part in (raw[:half], raw[half:]):
            writer.write(part)
            await writer.drain()


@pytest.mark.promise("credentials.hosts")
async def test_a_host_is_asked_with_its_callers_own_credential_which_goes_nowhere_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    here, harness = HostAnswers(), HostAnswers()
    async with serving(here) as server, serving(harness) as other:
        here.elsewhere, harness.elsewhere = other.url("/away"), server.url("/echo")
        host = {"name": "api", "url": server.url().rstrip("/"), "auth": {"per_user": {"kind": "header"}}}
        policy = POLICY % (server.port, other.port)
        async with credentials_harness(tmp_path, {}, policy=policy, credentials={"hosts": [host]}) as hub:
            refused = await hub.call("alice", "core/http.request", {"url": server.url("/echo")})
            assert (refused.error.kind, refused.error.details["state"]) == (DENIED, "NONE")
            assert refused.error.details["command"] == "toolhub credentials set api"
            assert server.connections == 0, "nothing was sent"

            await hub.ask("alice", "SetCredential", source="api", value=ALICE)
            await hub.ask("bob", "SetCredential", source="api", value=BOB)
            seen = []
            for tool in ("core/http.request", "core/http.fetchText", "core/http.fetchJson", "core/web.fetch"):
                for name, secret in (("alice", ALICE), ("bob", BOB)):
                    result = await hub.call(name, tool, {"url": server.url("/same")})
                    assert result.ok, result.error.message
                    assert b"***" in result.result_json
                    assert server.asked[-1].headers["authorization"] == f"Bearer {secret}"
                    seen.append(str(result))
            headed = await hub.call("alice", "core/http.head", {"url": server.url("/echo")})
            saved = await hub.call(
                "alice", "core/http.downloadFile", {"url": server.url("/echo"), "destPath": "a.json"}
            )
            assert headed.ok
            assert saved.ok, saved.error.message
            plan = await hub.call(
                "alice", "core/http.request", {"url": server.url(), "headers": {"Authorization": "x"}}
            )
            assert plan.error.kind == error_pb2.ERROR_KIND_INVALID_INPUT
            cut = [
                await hub.call("alice", tool, {"url": server.url(f"/padded/{padding}/{status}"), **bound})
                for tool, padding, status, bound in (
                    ("core/http.fetchText", 1_000, 200, {"maxBytes": 1_024}),
                    ("core/http.request", 1_000, 200, {"maxBytes": 1_024}),
                    ("core/http.fetchJson", 1_980, 400, {}),
                    ("core/web.fetch", 980, 200, {"maxChars": 1_000}),
                )
            ]
            assert [bool(each.error.message) for each in cut] == [False, False, True, False]
            assert not any(f"Bearer {ALICE}"[:12] in str(each) for each in cut), "nor is there the beginning of one"
            closed = await hub.call("alice", "core/http.request", {"url": server.url("/closed")})
            assert (closed.error.kind, closed.error.details["state"]) == (DENIED, "CREDENTIAL_REFUSED")

            before = len(server.asked)
            back = await hub.value("alice", "core/http.fetchJson", {"url": server.url("/away")})
            assert back["json"]["sent"] == "", "to another origin and back"
            assert server.asked[before].headers["authorization"] == f"Bearer {ALICE}"
            bare = await hub.value("carol", "core/http.fetchJson", {"url": other.url("/echo")})
            assert bare["json"]["sent"] == "", "a host that has no credentials is asked without"
            events = str(list(await hub.hub.events()))
            seen += [str(each) for each in (headed, saved, closed, events, await hub.ask("alice", "ListCredentials"))]
        kept = b"".join(path.read_bytes() for path in (tmp_path / "hub").rglob("*") if path.is_file())
        assert b'"sent": "***"' in kept, "the file that was downloaded is among what is searched"
        printed = "".join(capfd.readouterr())
        for secret in (ALICE, BOB):
            spellings = [secret, base64.b64encode(f"Bearer {secret}".encode()).decode()]
            assert not any(spelling in text for spelling in spellings for text in (*seen, printed, str(other.asked)))
            assert not any(spelling.encode() in kept for spelling in spellings)
        for key in hub.keys.values():
            assert key not in str([server.asked, other.asked]), "the caller's own credential reached a host"
