"""What each extra is for: a call that needs it, of a hub in an environment that has nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import jwt
import psycopg
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.fakes import comfyui_templates
from tests.fakes.comfyui import fake_comfyui
from tests.fakes.http_server import RawServer, by_target, response, serving
from tests.fakes.s3_server import BUCKET, fake_s3
from tests.fakes.tls import Authority, tls_settings
from tests.hub import OPEN_POLICY
from tests.unit.deploy.test_package import hub_of, run

POLICY = OPEN_POLICY.replace("read:fs,", 'read:fs, "read:*", "send:*", "comfyui:*", "langchain:*", "n8n:*", "mcp:*",')
WORKLOAD = "spiffe://example.org/planner"
BY_GRPCLIB = """
import asyncio, sys
from grpclib.client import Channel
from toolhub_betterproto.toolhub.v1 import GetServerInfoRequest, ToolServiceStub

async def main():
    channel = Channel(path=sys.argv[1])
    print((await ToolServiceStub(channel).get_server_info(GetServerInfoRequest())).principal)
    channel.close()

asyncio.run(main())
"""
TOOL = """
from langchain_core.tools import tool

@tool
def shout(text: str) -> str:
    "Say it louder."
    return text.upper()
"""
ARTICLE = "<title>Herons</title><article>" + "<p>The herons came back to the pond, all seven of them.</p>" * 20
Command = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class ExtraEnvironment:
    """An environment with the wheel and one extra, and a folder for a hub of it."""

    programs: Path
    folder: Path
    request: pytest.FixtureRequest

    def service(self, fixture: str) -> str:
        """What a fixture of the tests says: a URL, a path. Skips where there is none."""
        return str(self.request.getfixturevalue(fixture))

    @contextmanager
    def hub(
        self,
        *,
        policy: str = POLICY,
        sources: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
        **settings: Any,
    ) -> Iterator[Command]:
        """Runs commands of the environment's toolhub that ask it."""
        data, config = self.folder / "hub", self.folder / "toolhub.yaml"
        data.mkdir(mode=0o700, exist_ok=True)
        (data / "policy.yaml").write_text(policy)
        if sources:
            (data / "sources.yaml").write_text(yaml.safe_dump({"sources": sources}))
        config.write_text(yaml.safe_dump(settings))
        options = ("--config", str(config), *options)
        with hub_of([str(self.programs / "toolhub")], self.folder, *options, environment=environment) as command:
            yield partial(asyncio.to_thread, command)


async def otlp(place: ExtraEnvironment) -> None:
    received: list[bytes] = []

    def handle(call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def export(message: bytes, _: grpc.ServicerContext) -> bytes:
            received.append(message)
            return b""

        return grpc.unary_unary_rpc_method_handler(export)

    collector = grpc.server(ThreadPoolExecutor(1))
    collector.add_generic_rpc_handlers(
        [type("Any", (grpc.GenericRpcHandler,), {"service": lambda _, call: handle(call)})()]
    )
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    with place.hub(tracing={"otlp_endpoint": f"http://127.0.0.1:{port}"}) as command:
        await _called_with(command)
    collector.stop(0)
    assert any(b"core/fs.writeText" in message for message in received)


async def betterproto(place: ExtraEnvironment) -> None:
    with place.hub():
        principal = await asyncio.to_thread(
            run, str(place.programs / "python"), "-c", BY_GRPCLIB, f"{place.folder}/hub.sock", cwd=place.folder
        )
    assert principal == "local\n"


async def _keeps_a_key(place: ExtraEnvironment, **settings: Any) -> None:
    """A second call with its key, at the next hub on the same store, is given the first one's answer."""
    keyed = ("call", "core/fs.writeText", "path=a.txt", "text=x", "--idempotency-key", "once", "--json")
    with place.hub(**settings) as command:
        assert not json.loads(await command(*keyed)).get("replayed")
    with place.hub(**settings) as command:
        assert json.loads(await command(*keyed))["replayed"]


async def redis(place: ExtraEnvironment) -> None:
    await _keeps_a_key(place, stores={"redis_url": place.service("redis_url")})


async def postgres(place: ExtraEnvironment) -> None:
    await _keeps_a_key(place, stores={"kind": "postgres", "postgres_url": place.service("postgres_url")})


async def docket(place: ExtraEnvironment) -> None:
    with place.hub(stores={"redis_url": place.service("redis_url")}, jobs={"engine": "docket"}) as command:
        job = json.loads(await command("jobs", "submit", "core/fs.writeText", "path=a.txt", "text=x", "-o", "json"))
        assert '"ok": true' in await command("jobs", "result", job["jobId"], "--wait", "-o", "json")


async def s3(place: ExtraEnvironment) -> None:
    (place.folder / "a.txt").write_text("kept")
    with fake_s3() as server:
        bucket = {"bucket_url": f"s3://{BUCKET}/toolhub"}
        with place.hub(artifacts=bucket, environment=server.environment(AWS_ALLOW_HTTP="true")) as command:
            await command("artifacts", "put", "a.txt")
        assert [stored.data for stored in server.contents.objects.values()] == [b"kept"]


async def mcp(place: ExtraEnvironment) -> None:
    """`toolhub mcp`, as an MCP client starts it, with a hub of its own."""
    home = {"HOME": str(place.folder), "PATH": os.defpath, "TOOLHUB_DATA_DIR": str(place.folder / "hub")}
    server = StdioServerParameters(command=str(place.programs / "toolhub"), args=["mcp"], env=home)
    async with Client(stdio_client(server)) as client:
        answer = await client.call_tool("core__fs_writeText", {"path": "a.txt", "text": "x"})
    assert not answer.is_error, answer


async def oidc(place: ExtraEnvironment) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": "1", "alg": "ES256"}
    answers: dict[str, bytes] = {}
    async with serving(by_target(answers)) as issuer:
        url = issuer.url("").rstrip("/")
        about = {"issuer": url, "jwks_uri": f"{url}/keys"}
        answers["/.well-known/openid-configuration"] = response(json.dumps(about).encode())
        answers["/.well-known/oauth-authorization-server"] = answers["/.well-known/openid-configuration"]
        answers["/keys"] = response(json.dumps({"keys": [public]}).encode())
        now = int(time.time())
        claims = {"iss": url, "aud": "https://hub.example", "sub": "robot", "iat": now, "exp": now + 600}
        token = jwt.encode(claims, key, "ES256", {"kid": "1", "typ": "at+jwt"})
        known = {"name": "corp", "issuer": url, "audiences": ["https://hub.example"]}
        policy = POLICY.replace('["*"]', '["corp:*"]').replace("[local]", '["corp:*"]')
        with place.hub(policy=policy, auth={"modes": ["jwt"], "jwt": {"issuers": [known]}}) as command:
            await _called_with(command, "--api-key", token)


async def spiffe(place: ExtraEnvironment) -> None:
    server, own = Authority(), Authority(uris=("spiffe://example.org",))
    settings = tls_settings(place.folder, server)
    shown = own.sign("workload", dns=(), uris=(WORKLOAD,))
    files = {"server.pem": server.pem, "own.pem": own.pem, "my.pem": shown.certificate, "my.key": shown.key}
    for name, content in files.items():
        (place.folder / name).write_bytes(content)
        (place.folder / name).chmod(0o600)
    domain = {"name": "example.org", "bundle_file": str(place.folder / "own.pem")}
    settings["auth"] = {"modes": ["spiffe"], "spiffe": {"trust_domains": [domain]}}
    policy = POLICY.replace("[local]", f'["{WORKLOAD}"]')
    with place.hub(policy=policy, options=("--listen", "localhost:0"), **settings) as command:
        await _called_with(command, "--ca-file", "server.pem", "--cert", "my.pem", "--key-file", "my.key")


async def credentials(place: ExtraEnvironment) -> None:
    """One that a caller gives is sealed, and listed."""
    known = {"api_key": {"env": "N8N_KEY"}, "discover": {}, "auth": {"per_user": {"kind": "header"}}}
    flow = {"kind": "n8n", "url": "http://127.0.0.1:9", **known}
    with place.hub(sources={"flows": flow}, environment={"N8N_KEY": "k"}) as command:
        await command("credentials", "set", "flows", given="a-secret\n")
        assert "flows" in await command("credentials", "list")
    assert b"a-secret" not in b"".join(path.read_bytes() for path in (place.folder / "hub").glob("hub.db*"))


async def langchain(place: ExtraEnvironment) -> None:
    (place.folder / "louder.py").write_text(TOOL)
    source = {"kind": "langchain", "load": ["louder:shout"]}
    trusted, path = {"trusted_namespaces": ["louder"]}, {"PYTHONPATH": str(place.folder)}
    with place.hub(sources={"lc": source}, environment=path, tools=trusted) as command:
        await command("sources", "refresh", "lc")
        assert "HEY" in await command("call", "lc/shout", "text=hey", "--json")


async def comfyui(place: ExtraEnvironment) -> None:
    """What the server sends over its WebSocket: which nodes ran."""
    async with fake_comfyui() as comfy:
        templates = comfyui_templates.write(place.folder / "templates")
        source = {"kind": "comfyui", "backends": {"gpu": {"url": comfy.url}}, "templates": [str(templates)]}
        with place.hub(sources={"studio": source}) as command:
            await command("sources", "refresh", "studio")
            job = json.loads(await command("jobs", "submit", "studio/blur", "width=32", "-o", "json"))
            assert '"ok": true' in await command("jobs", "result", job["jobId"], "--wait", "-o", "json")
        assert comfy.sockets.opened


def _shop(folder: Path, **terms: Any) -> list[dict[str, Any]]:
    """An SQLite database of five rows, as the section `databases`."""
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER)")
        database.executemany("INSERT INTO orders VALUES (?)", [(number,) for number in range(5)])
    database.close()
    return [{"name": "shop", "file": str(folder / "shop.db"), **terms}]


async def db(place: ExtraEnvironment) -> None:
    """SQLite's statements by sqlglot, PostgreSQL's by pgparse, of a role that may only read."""
    admin = place.service("postgres_url")
    role = f"reader_{os.getpid()}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    url = urlsplit(admin)
    reader = url._replace(netloc=f"{role}@{url.hostname}:{url.port}").geturl()
    databases = [*_shop(place.folder), {"name": "books", "url": {"env": "BOOKS_URL"}}]
    try:
        with place.hub(databases=databases, environment={"BOOKS_URL": reader}) as command:
            for place_name, query in {"shop": "SELECT sum(id) AS n FROM orders", "books": "SELECT 2 * 5 AS n"}.items():
                words = (f"connection={place_name}", f"query={query}", "--json")
                answer = await command("call", "core/db.query", *words)
                assert json.loads(answer)["result"]["rows"] == [[10]], answer
    finally:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}".encode())


async def parquet(place: ExtraEnvironment) -> None:
    """What goes beyond the limit of rows."""
    with place.hub(databases=_shop(place.folder, export="parquet")) as command:
        words = ("connection=shop", "query=SELECT id FROM orders", "limit=1")
        answer = json.loads(await command("call", "core/db.query", *words, "--json"))
        (artifact,) = answer["artifacts"]
        await command("artifacts", "get", artifact["artifactId"], "--output", "rows.parquet")
    assert (place.folder / "rows.parquet").read_bytes()[:4] == b"PAR1"


def _open_to(site: RawServer) -> str:
    return POLICY + f"egress: [{{hosts: [127.0.0.1], ports: [{site.port}], cidrs: [127.0.0.0/8]}}]\n"


async def web(place: ExtraEnvironment) -> None:
    async with serving(by_target({"/": response(ARTICLE.encode(), content_type="text/html")})) as site:
        with place.hub(policy=_open_to(site)) as command:
            assert "all seven" in await command("call", "core/web.fetch", f"url={site.url()}", "--json")


async def browser(place: ExtraEnvironment) -> None:
    page = {"/": response(ARTICLE.encode(), content_type="text/html"), "/favicon.ico": response(status=404)}
    async with serving(by_target(page)) as site:
        with place.hub(policy=_open_to(site), browser={"executable": place.service("chromium")}) as command:
            assert '"ok": true' in await command("call", "core/web.screenshot", f"url={site.url()}", "--json")


async def desktop(place: ExtraEnvironment) -> None:
    with place.hub(desktop={"display": place.service("display")}) as command:
        assert '"ok": true' in await command("call", "core/desktop.screenshot", "--json")


async def media(place: ExtraEnvironment) -> None:
    async with serving(by_target({"/": response(b"{}")})) as receiver:
        policy = _open_to(receiver) + "rules: [{id: may, effect: ALLOW, tools: [core/media.send]}]\n"
        channel = {"name": "team", "url": {"env": "TEAM"}}
        urls = {"TEAM": f"json://127.0.0.1:{receiver.port}"}
        with place.hub(policy=policy, channels=[channel], environment=urls) as command:
            assert '"delivered": true' in await command("call", "core/media.send", "message=Seven herons.", "--json")
        assert b"Seven herons." in receiver.asked[0].body


async def programs(place: ExtraEnvironment) -> None:
    with place.hub() as command:
        answer = await command("call", "core/program.run", "code=sum(range(5))", "--json")
        assert json.loads(answer)["result"]["value"] == 10, answer


async def _called_with(command: Command, *credential: str) -> None:
    answer = await command("call", "core/fs.writeText", "path=a.txt", "text=x", "--json", *credential)
    assert '"ok": true' in answer


TRIALS: Mapping[str, Callable[[ExtraEnvironment], Awaitable[None]]] = {
    trial.__name__: trial
    for trial in (
        otlp,
        betterproto,
        redis,
        docket,
        postgres,
        s3,
        mcp,
        oidc,
        spiffe,
        credentials,
        langchain,
        comfyui,
        db,
        parquet,
        web,
        browser,
        desktop,
        media,
        programs,
    )
}
"""By the name of the extra."""
ALSO = {"parquet": "db,"}
"""Extras that it is of no use without."""
