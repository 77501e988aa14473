"""The private key by which a source shows itself is told nowhere: neither line by line by a server that somehow has it,
nor by the reason why a broken one cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.mcp_servers.echoing import Echoing
from tests.fakes.mcp_servers.scripted import serving
from tests.security.test_canary_sources import SourceCaller, canary, hub_with
from tests.security.test_canary_wire import HubOutput, hub_output
from toolhub.v1 import registry_service_pb2, source_pb2

__all__ = ["hub_output"]
NOWHERE = "http://127.0.0.1:9/token"


@pytest.mark.promise("secrets.nowhere")
async def test_the_key_of_a_client_is_disclosed_nowhere_in_any_form(tmp_path: Path, hub_output: HubOutput) -> None:
    key = rsa.generate_private_key(65537, 2048)
    whole = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    lines = [line for line in whole.splitlines()[1:-1] if len(line) >= 16]
    broken = canary("broken")
    (tmp_path / "key.pem").write_text(whole)
    (tmp_path / "broken.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{broken}\n-----END PRIVATE KEY-----\n")
    async with serving(Echoing(secrets=(lines[0], lines[-1]))) as url:

        def source(file: str, **more: str) -> dict[str, object]:
            reference = {"file": str(tmp_path / file)}
            return {"url": url, "oauth": {"client_id": "hub", "private_key": reference, "token_url": NOWHERE, **more}}

        sources = {
            "echo": source("key.pem"),
            "broken": source("broken.pem"),
            "unfit": source("key.pem", signing_algorithm="ES256"),
        }
        async with hub_with(tmp_path, sources) as hub:
            listed = await hub.registry.ListSources(registry_service_pb2.ListSourcesRequest())
            down = {
                status.source: status.message
                for status in listed.sources
                if status.state == source_pb2.SOURCE_STATE_DOWN
            }
            assert down.keys() == {"broken", "unfit"}
            assert "is not a PEM private key" in down["broken"]
            assert "cannot sign with ES256" in down["unfit"]
            caller = SourceCaller(hub, hub_output)
            assert "echo/say" in await caller.call_all("echo")
            await caller.look()
            assert await hub_output.leaks(hub, broken, *lines) == []
