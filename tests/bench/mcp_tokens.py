"""How many tokens a task costs over MCP, in each of the endpoint's modes: 500 tools of a real registry, 40 calls.

    python -m tests.bench.mcp_tokens

The definitions are served by one MCP server, a source of the hub each of the registry's servers; a client of the SDK
does the task over HTTP. Counted is what a model reads (instructions, list, answers) and writes (calls), each text once,
with OpenAI's o200k_base by npm's gpt-tokenizer, which is installed into a temporary folder. Set TEST_CORPORA.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import uvicorn
from mcp.client.client import Client
from mcp.server.lowlevel.server import Server
from mcp_types import CallToolRequestParams

from tests.bench.mcp_echo import listening_socket
from tests.bench.page import machine, markdown, publish
from tests.bench.search_quality import load_tools, own_tools
from tests.corpora import FOLDER
from tests.hub import settings_of
from tests.mcp_server.mcp_hub import ERAS, mcp_hub
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.mcp_server.offer import PROGRAM_TOOL
from toolhub_service.registry.catalog import ToolCatalog

_TOOLS: Final = 500
_READS: Final = 39
_READY_S: Final = 60.0
_POLICY: Final = """
extends: none
grants: [{principals: [local], capabilities: ["mcp:*", network, danger:destructive]}]
rules: [{id: registry-only, effect: DENY, tools: [%s]}]
roles: [{principals: [local], roles: [agent]}]
"""
"""The hub's own tools are hidden but for programs, so that a list has those of the registry."""

# The task: of the last 39 builds of a pipeline, which failed in their tests? One list, 39 reads.
_WISH: Final = "list builds of a pipeline and get details of a build"
_LIST, _READ = "buildkite__list_builds", "buildkite__get_build"
_WHERE: Final = {"org": "acme", "pipeline_slug": "shop"}
_NUMBERS: Final = [*range(1240, 1240 + _READS)]
_LOOK: Final = """where = {"org": "acme", "pipeline_slug": "shop"}
[await call("buildkite__list_builds", {**where, "perPage": 1}),
 await call("buildkite__get_build", {**where, "build_number": "1240"})]
"""
"""The registry's tools declare no output: a model has to look at one answer of each before it can read them."""
_PROGRAM: Final = """import asyncio, json
where = {"org": "acme", "pipeline_slug": "shop"}
async def read(tool, **args):
    return json.loads((await call(f"buildkite__{tool}", {**where, **args}))["text"])
listed = await read("list_builds", perPage=39)
builds = await asyncio.gather(*[read("get_build", build_number=str(b["number"])) for b in listed])
[b["number"] for b in builds if any(j["name"] == "test" and j["state"] == "failed" for j in b["jobs"])]
"""


def _build(number: int) -> dict[str, Any]:
    state = "failed" if number % 7 == 0 else "passed"
    jobs = [{"name": name, "state": state if name == "test" else "passed"} for name in ("lint", "test", "deploy")]
    commit = f"{number * 0x9E3779B97F4A7C15 % 2**160:040x}"
    return {
        "number": number,
        "state": state,
        "branch": "main",
        "commit": commit,
        "message": "Count what is left before a basket is paid",
        "creator": "ann",
        "jobs": jobs,
    }


def _server(tools: Sequence[ToolSpec]) -> Server[Any]:
    """Serves /NAME, with the tools of that server."""
    offered: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for spec in tools:
        source, _, name = spec.name.partition("/")
        offered[source].append({"name": name, "description": spec.description, "inputSchema": spec.input_schema})

    async def list_tools(context: Any, params: Any) -> dict[str, Any]:
        tools = offered[context.request.path_params["source"]]
        return {"tools": tools, "ttlMs": 60_000, "cacheScope": "public", "resultType": "complete"}

    async def call_tool(context: Any, params: CallToolRequestParams) -> dict[str, Any]:
        asked = params.arguments or {}
        numbers = _NUMBERS[: int(asked.get("perPage", _READS))]
        brief = [{"number": number, "state": _build(number)["state"]} for number in numbers]
        answer = _build(int(asked["build_number"])) if params.name == "get_build" else brief
        return {"content": [{"type": "text", "text": json.dumps(answer)}], "isError": False, "resultType": "complete"}

    return Server("registry", on_list_tools=list_tools, on_call_tool=call_tool)  # type: ignore[arg-type]


@asynccontextmanager
async def _served(tools: Sequence[ToolSpec]) -> AsyncIterator[int]:
    listening = listening_socket()
    app = _server(tools).streamable_http_app(streamable_http_path="/{source}", stateless_http=True, json_response=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1))
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
        listening.close()


class _Model:
    """What it has read and written."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.texts: dict[str, list[str]] = {"list": [], "finding": [], "calls": []}
        self.listed = 0

    async def read_list(self) -> None:
        tools = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in await self._tools()]
        shown = [{key: tool.get(key, "") for key in ("name", "description", "inputSchema")} for tool in tools]
        self.listed = len(shown)
        self.texts["list"] = [self._client.instructions or "", *map(json.dumps, shown)]

    async def _tools(self) -> list[Any]:
        page = await self._client.list_tools()
        found = list(page.tools)
        while page.next_cursor:
            page = await self._client.list_tools(cursor=page.next_cursor)
            found += page.tools
        return found

    async def call(self, why: str, name: str, arguments: Mapping[str, Any]) -> str:
        answer: Any = await self._client.call_tool(name, dict(arguments))
        assert not answer.is_error, answer
        text = "".join(content.text for content in answer.content)
        self.texts[why] += [json.dumps({"name": name, "arguments": arguments}), text]
        return text


async def _full(model: _Model) -> list[int]:
    return await _one_by_one(model, direct=True)


async def _search(model: _Model) -> list[int]:
    found = await model.call("finding", "search_tools", {"query": _WISH})
    assert _LIST in found, found
    assert _READ in found, found
    for name in (_LIST, _READ):
        await model.call("finding", "describe_tool", {"name": name})
    return await _one_by_one(model, direct=False)


async def _one_by_one(model: _Model, *, direct: bool) -> list[int]:
    async def call(name: str, arguments: Mapping[str, Any]) -> Any:
        wrapped = (name, arguments) if direct else ("call_tool", {"name": name, "arguments": arguments})
        return json.loads(await model.call("calls", *wrapped))

    builds = await call(_LIST, {**_WHERE, "perPage": _READS})
    read = [await call(_READ, {**_WHERE, "build_number": str(build["number"])}) for build in builds]
    return [build["number"] for build in read if build["jobs"][1]["state"] == "failed"]


async def _program(model: _Model) -> list[int]:
    stubs = await model.call("finding", "search_tools", {"query": _WISH})
    assert "def list_builds(" in stubs, stubs
    assert "def get_build(" in stubs, stubs
    await model.call("finding", "run_program", {"code": _LOOK})
    ran = json.loads(await model.call("calls", "run_program", {"code": _PROGRAM}))
    return list(ran["value"])


_TASKS: Final = {"full": _full, "search": _search, "program": _program}


async def _done(mode: str, policy: str, port: int, tools: Sequence[ToolSpec]) -> tuple[int, dict[str, list[str]]]:
    """How many tools the list has, and the texts of the task."""
    sources = {spec.name.partition("/")[0] for spec in tools}
    with tempfile.TemporaryDirectory() as folder:
        lines = [f'  {name}: {{url: "http://127.0.0.1:{port}/{name}"}}\n' for name in sorted(sources)]
        path = Paths(settings_of(Path(folder))).sources
        path.parent.mkdir(parents=True)
        path.write_text("sources:\n" + "".join(lines))
        path.chmod(0o600)
        async with mcp_hub(Path(folder), policy=policy, shown=mode) as hub, hub.client(ERAS[1]) as client:
            model = _Model(client)
            await _until_read(hub.grpc.hub.mcp.engine.catalog, sources, len(tools))
            await model.read_list()
            failed = await _TASKS[mode](model)
            assert failed == [number for number in _NUMBERS if number % 7 == 0], failed
            return model.listed, model.texts


async def _until_read(catalog: ToolCatalog, sources: Collection[str], count: int) -> None:
    """Sources are read while the hub already serves."""
    changed = asyncio.Event()
    catalog.subscribe(lambda _: changed.set())
    async with asyncio.timeout(_READY_S):
        while sum(spec.name.partition("/")[0] in sources for spec in catalog.all()) < count:
            await changed.wait()
            changed.clear()


_COUNT: Final = """
const { encode } = require("gpt-tokenizer");
const rows = JSON.parse(require("fs").readFileSync(0, "utf8"));
const count = (texts) => texts.reduce((sum, text) => sum + encode(text).length, 0);
for (const row of Object.values(rows)) for (const part of Object.keys(row)) row[part] = count(row[part]);
console.log(JSON.stringify(rows));
"""


def _counted(texts: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, dict[str, int]]:
    with tempfile.TemporaryDirectory() as folder:
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "gpt-tokenizer"]
        subprocess.run(npm, cwd=folder, check=True)
        Path(folder, "count.cjs").write_text(_COUNT)
        given = json.dumps(texts)
        ran = subprocess.run(["node", "count.cjs"], cwd=folder, input=given, capture_output=True, text=True, check=True)
    counted: dict[str, dict[str, int]] = json.loads(ran.stdout)
    return counted


async def _measure(policy: str) -> dict[str, Any]:
    tools = load_tools("docker_mcp_registry")[:_TOOLS]
    async with _served(tools) as port:
        done = {mode: await _done(mode, policy, port, tools) for mode in _TASKS}
    counted = _counted({mode: texts for mode, (_, texts) in done.items()})
    return {mode: {"listed": done[mode][0], **counted[mode]} for mode in _TASKS}


def _as_table(found: Mapping[str, Mapping[str, int]]) -> str:
    parts = ("list", "finding", "calls")
    whole = {mode: sum(row[part] for part in parts) for mode, row in found.items()}
    rows: list[tuple[str, ...]] = [("mode", "tools listed", *parts, "in all", "share")]
    for mode, row in found.items():
        share = whole[mode] / whole["full"]
        rows.append((mode, str(row["listed"]), *(f"{row[p]:,}" for p in parts), f"{whole[mode]:,}", f"{share:.1%}"))
    return markdown(rows)


def main() -> None:
    if not (FOLDER / "search").is_dir():
        print("skipped: the corpora are not here; set TEST_CORPORA to the folder that holds them")
        return
    hidden = [spec.name for spec in own_tools() if spec.name != PROGRAM_TOOL]
    found = asyncio.run(_measure(_POLICY % ", ".join(hidden)))
    publish("mcp_tokens", found | {"machine": machine()}, _as_table(found), write=False)


if __name__ == "__main__":
    main()
