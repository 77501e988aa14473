"""A real n8n without its user interface: workflows imported, an owner, an API key, all of it active, on free ports.

The order matters: credentials and workflows are imported while n8n is down (they keep their ids), the owner is set up
through its internal API, which hands out the key of the public one, and that one activates the workflows.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance.n8n_install import Install, expected
from tests.acceptance.n8n_workflows import CREDENTIAL, TAG, own_workflows
from tests.fixtures import path as recorded
from tests.servers import Unavailable

TOKEN_HEADER: Final = "X-Hub-Token"
TOKEN: Final = "s3cret-lab"
"""Header auth of the workflow `hub-auth`."""
INACTIVE: Final = "hubInactive00001"
_OWNER: Final = {"email": "owner@example.com", "firstName": "Ann", "lastName": "Owner", "password": "Acceptance-1"}
_SCOPES: Final = ("execution", "tag", "workflow", "workflowTags")
_BEGUN_S: Final = 30.0
_LOOK_S: Final = 0.05
_READY: Final = "Editor is now accessible"
_READY_S: Final = 240.0
"""The first start makes the database, on whatever machine this is."""


class RealN8n:
    """Raises Unavailable, with the end of its log, when it does not come up."""

    def __init__(self, install: Install, folder: Path) -> None:
        self.version = install.version
        self.api_key = ""
        self.log = folder / "n8n.log"
        self.workflows: dict[str, str] = {}
        """Ids by the path of their webhooks."""
        self._install = install
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._port, self._broker_port = _free_port(), _free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Until webhooks of active workflows answer. Again after an end: on the same port, with the same data."""
        ready = self._spawn()
        if (
            not await asyncio.to_thread(ready.wait, _READY_S)
            or self._process is None
            or self._process.poll() is not None
        ):
            await self.kill()
            raise Unavailable(f"n8n did not start: {self.log_end()}")

    async def stop(self) -> None:
        """As an operator would."""
        await self._end(subprocess.Popen.terminate)

    async def kill(self) -> None:
        """Without a word."""
        await self._end(subprocess.Popen.kill)

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Of the public API, such as `/workflows`; an answer of 2xx or an error that shows what n8n said."""
        async with self.client() as client:
            answer = await client.request(method, f"/api/v1{path}", json=body, headers={"X-N8N-API-KEY": self.api_key})
        return _good(answer)

    async def executions(self, webhook: str) -> list[dict[str, Any]]:
        """All of a workflow, newest first, those at work too: lists without a status leave them out."""
        found: dict[str, dict[str, Any]] = {}
        for status in ("", "&status=running", "&status=waiting"):
            answer = await self.ask("GET", f"/executions?workflowId={self.workflows[webhook]}&limit=250{status}")
            found |= {execution["id"]: execution for execution in answer.json()["data"]}
        return sorted(found.values(), key=lambda execution: -int(execution["id"]))

    async def began(self, webhook: str, count: int) -> None:
        """Wait until there are so many executions; n8n sends no event."""
        async with asyncio.timeout(_BEGUN_S):
            while len(await self.executions(webhook)) < count:  # noqa: ASYNC110 - nobody here who could set an event
                await asyncio.sleep(_LOOK_S)

    async def execution(self, execution_id: str) -> dict[str, Any]:
        answer = await self.ask("GET", f"/executions/{execution_id}?includeData=true")
        return dict(answer.json())

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60.0)

    def resident_mb(self) -> float:
        """Of n8n and its task runner."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(_resident_kb(pid) for pid in [str(self.pid), *children]) / 1024

    def log_end(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text().splitlines()[-lines:]) if self.log.exists() else "nothing was logged"

    async def prepare(self) -> None:
        """From an empty folder to an n8n that serves all workflows."""
        home = self._folder / "import"
        home.mkdir(parents=True)
        secret = {"name": TOKEN_HEADER, "value": TOKEN}
        credential = {"id": CREDENTIAL, "name": "hub header", "type": "httpHeaderAuth", "data": secret}
        (home / "credentials.json").write_text(json.dumps([credential]))
        await self._command("import:credentials", f"--input={home / 'credentials.json'}")
        await self._command("import:workflow", "--separate", f"--input={recorded('n8n', 'workflows')}")
        await self.start()
        self.api_key = await self._made_key()
        for own in own_workflows():
            await self.ask("POST", "/workflows", own)
        await self._activate()

    async def _made_key(self) -> str:
        async with self.client() as client:
            client.headers["browser-id"] = "acceptance"
            _good(await client.post("/rest/owner/setup", json=_OWNER))
            login = {"emailOrLdapLoginId": _OWNER["email"], "password": _OWNER["password"]}
            _good(await client.post("/rest/login", json=login))
            offered = _good(await client.get("/rest/api-keys/scopes")).json()["data"]
            scopes = [scope for scope in offered if scope.split(":")[0] in _SCOPES]
            asked = {"label": "hub", "expiresAt": None, "scopes": scopes}
            made = _good(await client.post("/rest/api-keys", json=asked)).json()
        return str(made["data"]["rawApiKey"])

    async def _activate(self) -> None:
        tag = (await self.ask("POST", "/tags", {"name": TAG})).json()
        for found in (await self.ask("GET", "/workflows?limit=250")).json()["data"]:
            webhook = next(node for node in found["nodes"] if node["name"] == "Webhook")["parameters"]["path"]
            self.workflows[webhook] = found["id"]
            if found["id"] != INACTIVE:
                await self.ask("POST", f"/workflows/{found['id']}/activate")
        await self.ask("PUT", f"/workflows/{self.workflows['own-noted']}/tags", [{"id": tag["id"]}])

    async def _command(self, *words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._install.command,
            *words,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode != 0:
            raise Unavailable(f"n8n {words[0]}: {output.decode(errors='replace')[-1_000:]}")

    async def _end(self, by: Any) -> None:
        if self._process is not None and self._process.poll() is None:
            by(self._process)
            await asyncio.to_thread(self._process.wait, 60.0)

    def _spawn(self) -> threading.Event:
        """Set once it is ready, or has ended."""
        words = [*self._install.command, "start"]
        news: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._process = subprocess.Popen(words, env=self._environment, errors="replace", **news)
        ready = threading.Event()
        threading.Thread(target=self._keep_log, args=(self._process, ready), daemon=True).start()
        return ready

    def _keep_log(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout, self.log.open("a") as kept:
            for line in process.stdout:
                kept.write(line)
                kept.flush()
                if _READY in line:
                    ready.set()
        ready.set()

    @property
    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "N8N_USER_FOLDER": str(self._folder),
            "N8N_LISTEN_ADDRESS": "127.0.0.1",
            "N8N_PORT": str(self._port),
            "N8N_RUNNERS_BROKER_PORT": str(self._broker_port),
            "N8N_ENCRYPTION_KEY": "of-an-acceptance-run",
            "N8N_SECURE_COOKIE": "false",
            "N8N_DIAGNOSTICS_ENABLED": "false",
            "N8N_VERSION_NOTIFICATIONS_ENABLED": "false",
            "N8N_TEMPLATES_ENABLED": "false",
            "N8N_METRICS": "true",
        }


@asynccontextmanager
async def real_n8n(folder: Path) -> AsyncIterator[RealN8n]:
    """One that serves, with everything below `folder`. Raises Unavailable where n8n is not installed."""
    install = expected()
    if not install.is_complete:
        raise Unavailable("n8n is not installed: run `python -m tests.acceptance.n8n_install`")
    n8n = RealN8n(install, folder)
    try:
        await n8n.prepare()
        yield n8n
    finally:
        await n8n.stop()


def _good(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise Unavailable(f"n8n: {answer.request.method} {answer.url.path}: {answer.status_code} {answer.text[:500]}")
    return answer


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _resident_kb(pid: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
