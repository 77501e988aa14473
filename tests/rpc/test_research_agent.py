"""The example of an agent that reads, remembers, queries, takes a picture and sends it, run as a program."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

from tests.fakes.http_server import always, response, serving
from tests.hub import running_hub
from tests.rpc.media_receivers import receiving
from toolhub.v1 import approval_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub.v1.approval_service_pb2_grpc import ApprovalServiceStub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys

EXAMPLE = Path(__file__).parents[2] / "examples" / "research_agent"
PAGE = b"<!doctype html><title>Harbour news</title><article><p>The harbour handled 4,711 containers.</p></article>"


async def test_the_agent_does_its_work_and_sends_what_a_person_has_approved(tmp_path: Path, chromium: str) -> None:
    with sqlite3.connect(tmp_path / "sales.db") as database:
        database.execute("CREATE TABLE sales (region TEXT, total INTEGER)")
        database.execute("INSERT INTO sales VALUES ('north', 42)")
    database.close()
    async with serving(always(response(PAGE, content_type="text/html"))) as site, receiving() as receivers:
        (tmp_path / "channel").write_text(receivers.mail("team@example.com"))
        (tmp_path / "channel").chmod(0o600)
        own_host = f"hosts: [127.0.0.1]\n  ports: [{site.port}]\n  cidrs: [127.0.0.0/8]"
        policy = (EXAMPLE / "policy.yaml").read_text().replace("hosts: [example.com, www.example.com]", own_host)
        assert own_host in policy
        settings = {
            "databases": [{"name": "sales", "file": str(tmp_path / "sales.db")}],
            "channels": [{"name": "team", "url": {"file": str(tmp_path / "channel")}}],
            "browser": {"executable": chromium},
            "auth": {"modes": ["api-key"]},
        }
        async with running_hub(tmp_path / "hub", policy=policy, settings=settings) as hub:
            file = Paths(hub.hub.settings).key_file()
            keys = {name: file.create(name) for name in ("researcher", "ann")}
            reload_keys(hub.hub, file)
            agent = await asyncio.create_subprocess_exec(
                *(sys.executable, str(EXAMPLE / "agent.py"), site.url(), "SELECT region, total FROM sales"),
                stdout=asyncio.subprocess.PIPE,
                env={"TOOLHUB_ADDRESS": hub.address, "TOOLHUB_API_KEY": keys["researcher"], "PATH": ""},
            )
            assert agent.stdout is not None
            waits = (await agent.stdout.readline()).decode()
            assert waits.startswith("waits for a person: toolhub approvals approve "), waits
            assert receivers.mails == []
            decision = pb.DecideApprovalRequest(approval_id=waits.split()[-1], decision=approval_pb2.DECISION_APPROVE)
            ann = (("authorization", f"Bearer {keys['ann']}"),)
            await ApprovalServiceStub(hub.channel).DecideApproval(decision, timeout=60, metadata=ann)
            rest, _ = await agent.communicate()
            assert rest.decode() == "sent by team\n"
            (mail,) = receivers.mails
            pictures = [part for part in mail.walk() if part.get_content_type() == "image/png"]
            assert "north | 42" in str(mail)
            assert pictures[0].get_payload(decode=True)[:4] == b"\x89PNG"  # type: ignore[index]
            researcher = (("authorization", f"Bearer {keys['researcher']}"),)
            query = {"query": "harbour containers"}
            remembered = await hub.value("core/memory.search", query, metadata=researcher)
            assert remembered["items"][0]["untrusted"] is True
