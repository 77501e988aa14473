"""Public attack corpora as real calls to a serving hub whose policy grants everything but the network, save one port.

Every call is answered by a ToolResult; nothing connects anywhere else, no byte outside the workspace is read or
written, no shell runs, and the hub serves on. Samples of each corpus: the unit tests run them whole against the parts.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc.aio
import protovalidate
import pytest

from tests.corpora import load_json, load_lines, sample
from tests.fakes.http_server import RawServer, always, response, serving
from tests.hub import RunningHub, running_hub
from toolhub.v1 import call_pb2, error_pb2, result_pb2
from toolhub_service.egress.resolver import SystemResolver

SAMPLE = 40
"""Lines of each list: a call costs a hundred times what its check costs, which the unit tests run over all of them."""
AT_ONCE = 16
OUTSIDE = "CANARY-OF-THE-OUTSIDE"
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "busybox"}
_HOST = re.compile(r"^[a-z+]*:?[/\\]*([^/\\?#]+)", re.IGNORECASE)


@dataclass
class ProcessActivity:
    """What the process did while a test ran, by the interpreter's own audit events."""

    connected: list[Any] = field(default_factory=list)
    started: list[tuple[str, ...]] = field(default_factory=list)


_watching: list[ProcessActivity] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    activity = _watching[-1]
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        activity.connected.append(arguments[1])
    elif event == "subprocess.Popen":
        activity.started.append(tuple(map(str, arguments[1])))
    elif event in ("os.system", "os.exec", "os.fork", "os.forkpty", "pty.spawn"):
        activity.started.append((event,))


@cache
def _add_hook() -> None:
    """Once a hook is there it stays, and every later test of this process pays for it: not before it is needed."""
    sys.addaudithook(_hook)


@pytest.fixture
def activity() -> Iterator[ProcessActivity]:
    _add_hook()
    _watching.append(ProcessActivity())
    yield _watching[-1]
    _watching.clear()


class CatchAllResolver(SystemResolver):
    """Every name there is leads to this very machine, where the canary server listens."""

    async def resolve(self, host: str, port: int) -> tuple[str, ...]:
        return ("127.0.0.1",)


@dataclass
class CorpusHarness:
    """A hub, the one server it may reach, and one that it must not."""

    hub: RunningHub
    allowed: RawServer
    canary: RawServer
    tree: dict[str, str]
    """What stood outside of the workspaces before."""
    folder: Path


@asynccontextmanager
async def corpus_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CorpusHarness]:
    monkeypatch.setattr("toolhub_service.app.wiring.tools.SystemResolver", CatchAllResolver)
    (tmp_path / "canary.txt").write_text(OUTSIDE)
    (tmp_path / "hub" / "workspaces").mkdir(parents=True)
    (tmp_path / "hub" / "workspaces" / "canary.txt").write_text(OUTSIDE)
    hello = always(response(b'{"hello": 1}', content_type="application/json"))
    async with serving(hello) as allowed, serving(hello) as canary:
        policy = f"""
extends: none
grants:
  - {{principals: ["*"], capabilities: ["read:*", "write:*", "execute:command", network, "danger:destructive"]}}
destructive_requires_plan: false
roles:
  - {{principals: [local], roles: [agent, auditor]}}
egress:
  - {{hosts: ["127.0.0.1", localhost], ports: [{allowed.port}], methods: [GET, HEAD, POST], cidrs: [127.0.0.0/8]}}
commands:
  - {{preset: safe}}
  - {{name: echo, path: /usr/bin/echo, positionals: "(?s).*"}}
"""
        async with running_hub(tmp_path, policy=policy) as hub:
            yield CorpusHarness(hub, allowed, canary, tree_of(tmp_path), tmp_path)


def tree_of(folder: Path) -> dict[str, str]:
    """Digests of all files that no call may change; the hub's own accounts in `.usage` are left to `damage_of`."""
    own = ("workspaces/local", "workspaces/.usage")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("audit", "hub.db")) and not any(it in str(path) for it in own)
    }


def is_line(name: str) -> bool:
    """Whether the contract takes it for a tool's name at all; anything else fails the RPC (`ToolIntent.tool`)."""
    try:
        protovalidate.validate(call_pb2.ToolIntent(tool=name))
    except protovalidate.ValidationError:
        return False
    return True


async def answers(hub: RunningHub, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> list[result_pb2.ToolResult]:
    """Every call is answered by a ToolResult that is no INTERNAL; a status would be raised here."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(tool: str, args: Mapping[str, Any] | bytes) -> result_pb2.ToolResult:
        async with gate:
            if isinstance(args, bytes):
                result = await hub.invoke(tool, args_json=args, request_id="attack")
            else:
                result = await hub.invoke(tool, args, request_id="attack")
        kind = error_pb2.ErrorKind.Name(result.error.kind)
        assert kind != "ERROR_KIND_INTERNAL", (tool, args)
        assert dict(result.error.details).get("cause") != "INTERNAL", (tool, args)
        assert result.ok != bool(result.error.kind), (tool, args)
        assert OUTSIDE not in str(result), (tool, args)
        return result

    return await asyncio.gather(*(one(tool, args) for tool, args in calls))


async def damage_of(corpus_harness: CorpusHarness, activity: ProcessActivity) -> dict[str, Any]:
    """What the payloads reached, started and wrote that they must not; empty where the hub held and still answers."""
    workspaces = {path.name for path in (corpus_harness.folder / "hub" / "workspaces").iterdir()}
    counted = corpus_harness.folder / "hub" / "workspaces" / ".usage"
    harm = {
        "connections to the canary": corpus_harness.canary.connections,
        "connections": {where[:2] for where in activity.connected} - {("127.0.0.1", corpus_harness.allowed.port)},
        "started": [argv for argv in activity.started if Path(argv[0]).name in SHELLS or argv[0].startswith("os.")],
        "files": tree_of(corpus_harness.folder).items() ^ corpus_harness.tree.items(),
        "workspaces": workspaces - {"local", "canary.txt", ".usage"},
        "accounts": {path.name for path in counted.iterdir()} - {"local"} if counted.exists() else set(),
        "the hub is gone": not (await corpus_harness.hub.invoke("core/util.time.now")).ok,
    }
    return {name: found for name, found in harm.items() if found}


def hosts(lines: Iterable[str]) -> list[str]:
    """What a URL parser, a good one or a bad one, may take for the host."""
    found = (_HOST.match(line) for line in lines)
    return [match[1].rsplit("@", 1)[-1].rsplit(":", 1)[0] for match in found if match]


@pytest.mark.promise("net.only-checked-addresses")
async def test_ssrf_payloads_reach_nothing_but_the_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activity: ProcessActivity
) -> None:
    lines = [
        *sample(load_json("ssrf/patt_ssrf_urls.json.gz"), 80),
        *sample(load_lines("ssrf/seclists_SSRF_hacktricks.txt.gz"), 80),
        *sample(load_lines("ssrf/fuzzdb_localhost.txt.gz"), SAMPLE),
        *sample(load_lines("ssrf/patt_Open-Redirect-payloads.txt.gz"), SAMPLE),
    ]
    crlf = sample(load_lines("ssrf/patt_crlf.txt.gz"), SAMPLE)
    crlf += sample(load_lines("ssrf/fuzzdb_crlf-injection.txt.gz"), SAMPLE)
    async with corpus_harness(tmp_path, monkeypatch) as harness:
        ports = (harness.allowed.port, harness.canary.port)
        urls = [form for line in lines for form in (line, f"http://{unquote(line)}/")]
        urls += [f"http://{host}:{port}/" for host in hosts(lines) for port in ports]
        base = harness.allowed.url("/")
        calls: list[tuple[str, Mapping[str, Any]]] = [("core/http.fetchText", {"url": url}) for url in urls]
        calls += [("core/http.fetchText", {"url": base + line}) for line in crlf]
        calls += [("core/http.fetchText", {"url": base, "headers": {"X-A": unquote(line)}}) for line in crlf]
        calls += [("core/http.fetchText", {"url": base, "headers": {unquote(line): "x"}}) for line in crlf]
        results = await answers(harness.hub, calls)
        assert any(result.ok for result in results), "the one server can be reached"
        sent = {name for asked in harness.allowed.asked for name in asked.headers}
        asked_for = {unquote(line).lower() for line in crlf if unquote(line).isalnum()}
        own = {"host", "user-agent", "accept", "accept-encoding", "x-a"}
        assert sent <= own | asked_for, "no line break made a header"
        assert await damage_of(harness, activity) == {}


@pytest.mark.promise("net.redirects-checked")
async def test_a_redirect_is_not_followed_where_policy_does_not_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activity: ProcessActivity
) -> None:
    targets = iter(sample([*load_json("ssrf/patt_ssrf_urls.json.gz"), *load_lines("ssrf/fuzzdb_localhost.txt.gz")], 60))
    async with corpus_harness(tmp_path, monkeypatch) as harness:
        away: list[str] = [f"http://127.0.0.1:{harness.canary.port}/", f"//localhost:{harness.canary.port}/", *targets]
        plain = [line for line in away if line.isprintable() and line.isascii()]
        where = iter(plain)

        async def move(asked: Any, writer: asyncio.StreamWriter) -> bool:
            writer.write(response(status=302, location=next(where)))
            await writer.drain()
            return False

        async with serving(move) as mover:
            text = (tmp_path / "hub" / "policy.yaml").read_text()
            (tmp_path / "hub" / "policy.yaml").write_text(text.replace(f"[{harness.allowed.port}]", f"[{mover.port}]"))
            assert harness.hub.hub.policy_file.load().applied
            results = await answers(harness.hub, [("core/http.fetchText", {"url": mover.url("/")}) for _ in plain])
            assert not any(result.ok for result in results)
            assert {where[:2] for where in activity.connected} == {("127.0.0.1", mover.port)}
            assert harness.canary.connections == 0


@pytest.mark.promise("fs.never-outside")
async def test_path_payloads_stay_in_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activity: ProcessActivity
) -> None:
    paths: list[str] = []
    for name in ("traversals-8-deep-exotic-encoding", "NullByteRepresentations", "invalid-filenames-linux"):
        paths += sample(load_lines(f"path/fuzzdb_{name}.txt.gz"), 20)
    for name in ("patt_JHADDIX_LFI", "patt_LFI-FD-check", "patt_directory_traversal", "patt_nullbyte"):
        paths += sample(load_lines(f"path/{name}.txt.gz"), 20)
    paths = [path.encode("utf-8", "replace").decode().replace("{FILE}", "canary.txt") for path in paths]
    paths += [f"{'../' * up}canary.txt" for up in range(1, 9)] + [str(tmp_path / "canary.txt")]
    async with corpus_harness(tmp_path, monkeypatch) as harness:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        for path in {form for line in paths for form in (line, unquote(line), line.lstrip("/"))}:
            calls += [
                ("core/fs.readText", {"path": path}),
                ("core/fs.listDir", {"path": path}),
                ("core/fs.writeText", {"path": path, "text": "taken", "overwrite": True}),
                ("core/fs.copy", {"source": path, "destination": "taken"}),
                ("core/fs.deletePath", {"path": path, "confirm": True, "recursive": True}),
                ("core/exec.run", {"argv": ["cat", path]}) if len(calls) < 200 else ("core/fs.stat", {"path": path}),
            ]
        await answers(harness.hub, calls)
        assert await damage_of(harness, activity) == {}


@pytest.mark.promise("exec.no-shell")
async def test_shell_payloads_reach_no_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activity: ProcessActivity
) -> None:
    names = ("patt_command_exec", "fuzzdb_command-execution-unix", "fuzzdb_command-injection-template")
    lines = [line for name in names for line in sample(load_lines(f"shell/{name}.txt.gz"), 20)]
    lines = [line.encode("utf-8", "replace").decode() for line in lines]
    lines += [f"{start}touch {tmp_path}/taken{end}" for start, end in (("; ", ""), ("$(", ")"), ("`", "`"), ("\n", ""))]
    async with corpus_harness(tmp_path, monkeypatch) as harness:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        for line in lines:
            calls += [("core/exec.run", {"command": line}), ("core/exec.run", {"argv": [line]})]
            calls += [("core/exec.run", {"argv": ["echo", line]}), ("core/exec.run", {"argv": ["cat"], "cwd": line})]
        results = await answers(harness.hub, calls)
        assert any(result.ok for result in results), "echo runs"
        assert activity.started
        assert await damage_of(harness, activity) == {}


@pytest.mark.filterwarnings("ignore:deprecated string literal syntax:PendingDeprecationWarning")
async def test_strings_templates_and_json_come_back_as_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, activity: ProcessActivity
) -> None:
    corpus = [text.encode("utf-8", "replace").decode() for text in load_json("strings/blns.json.gz")]
    strings = sample(corpus, 100)
    templates = ["a plain {{ config }}", *sample(load_json("template/patt_ssti_python.json.gz"), SAMPLE)]
    texts: dict[str, str] = load_json("json/JSONTestSuite_parsing_b64.json.gz")
    async with corpus_harness(tmp_path, monkeypatch) as harness:
        calls: list[tuple[str, Any]] = []
        for text in strings:
            calls += [
                ("core/util.json.select", {"json": {text: text}, "path": text or "a"}),
                ("core/util.json.select", {"json": {text: text}, "path": f"${text}", "language": "jsonpath"}),
                ("core/fs.writeText", {"path": text, "text": text, "overwrite": True}),
                ("core/util.time.now", {"timezone": text}),
            ]
        calls += [(name, {name: name}) for name in sorted({text[:60] or "x" for text in strings}) if is_line(name)]
        # Of the whole corpus: a sample may have none of these few.
        other_names = {text[:60] for text in corpus if text and not is_line(text[:60])}
        assert other_names
        for name in other_names:
            with pytest.raises(grpc.aio.AioRpcError, match=r"intent\.tool: must be one line"):
                await harness.hub.invoke(name, {})
        for template in templates:
            calls.append(("core/util.template.render", {"template": template, "data": {"config": template}}))
        calls += [("core/util.json.select", base64.b64decode(data)) for data in texts.values()]
        calls += [
            ("core/util.json.select", b'{"json":' + base64.b64decode(data) + b',"path":"@"}') for data in texts.values()
        ]
        results = await answers(harness.hub, calls)
        shown = [result for result in results if result.ok and result.tool == "core/util.template.render"]
        assert shown
        assert not any(b"root:" in result.result_json or b"<class" in result.result_json for result in shown)
        assert await damage_of(harness, activity) == {}
