"""The recipes of CONTRIBUTING.md, performed in a copy of the tree: what they tell to touch is enough."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.missing import need_program

ROOT = Path(__file__).parents[3]
SERVICE = Path("service/toolhub_service")
IMPORTS = """
from __future__ import annotations
from collections.abc import Iterator
from typing import Annotated
from msgspec import Meta
from toolhub_service.sections.source_config import Source, SourceInvalid, Value, check_web
from toolhub_service.adapters.source_kind import SourceKind
from toolhub_service.domain.tool import ToolKind
"""
ADAPTER = """
from toolhub_service.adapters.source_kind import OpenedSource
from toolhub_service.domain.call import NO_PRECONDITIONS
from toolhub_service.domain.ports import NOTHING_FIXED
from toolhub_service.domain.result import Outcome
from toolhub_service.domain.source import Definition, Discovery, Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec

class AcmeOpener:
    kind = ToolKind.ACME
    trust = Trust.ALWAYS

    def __init__(self, deps): self.adapter = self
    def endpoint(self, name, entry): return entry.url
    def forget(self, name): pass
    def listen(self, changed): pass
    def diagnostics(self): return ()
    async def start(self): pass
    async def close(self): pass
    def effects(self, call): return ()
    async def preconditions(self, planned): return NO_PRECONDITIONS
    def has_side_effects(self, planned): return False
    def upstream(self, planned): return planned.spec.upstream_key
    def resumes(self, spec): return False
    def fixed_terms(self, spec): return NOTHING_FIXED

    def open(self, name, entry):
        self.name = name
        return OpenedSource(self)

    async def discover(self):
        words = {"name": "greet"}
        spec = ToolSpec(f"{self.name}/greet", ToolKind.ACME, "Greet.", {"type": "object"}, {}, source=self.name)
        return Discovery((Definition(spec, words),))

    async def execute(self, call, sink):
        return Outcome(value={"said": "hello"})
"""
HUB = """
import asyncio, json, pathlib, sys
from toolhub.v1 import registry_service_pb2
sys.path.insert(0, {root!r})
from tests.hub import running_hub

async def main():
    home = pathlib.Path({home!r})
    async with running_hub(home, policy={policy!r}) as hub:
        await hub.hub.sourcing.sources.wait_until_tried(timeout_s=60)
        result = await hub.invoke({tool!r}, json.loads({args!r}))
        print(result.result_json.decode() if result.ok else result.error)

asyncio.run(main())
"""
NOTE_IMPORTS = """
from collections.abc import Sequence
from typing import Final
from toolhub_service.domain.note import Note
from toolhub_service.stores.codec import decode_note, encode_note
from toolhub_service.stores.declared_table import declare_table
from toolhub_service.stores.record_store import Column, Records, Where
"""
NOTED = """
import asyncio, pathlib, sys
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.note import Note
from toolhub_service.stores.memory.records import MemoryRecords
from toolhub_service.stores.note_records import NOTES, Notes
from toolhub_service.stores.postgres.link import PostgresLink
from toolhub_service.stores.postgres.records import PostgresRecords
from toolhub_service.stores.redis.link import RedisLink
from toolhub_service.stores.redis.records import RedisRecords
from toolhub_service.stores.sqlite.file import SqliteFile
from toolhub_service.stores.sqlite.records import SqliteRecords

async def noted(records):
    await records.start()
    notes, first, second = Notes(records), Note("n-1", "ann", 1, "a"), Note("n-1", "ann", 1, "b", 2)
    done = [await notes.put(each) for each in (first, first, second, Note("n-2", "bob", 2))]
    found, count = await notes.of_owner("ann", 9)
    await records.close()
    return done == [True, False, True, True] and (await notes.get("n-1"), [*found], count) == (second, [second], 1)

async def main():
    file, link = SqliteFile(pathlib.Path({home!r}) / "hub.db"), RedisLink({redis!r}, SystemRandomness())
    postgres = PostgresLink({postgres!r})
    stores = (
        MemoryRecords(NOTES), SqliteRecords(file, NOTES), RedisRecords(link, NOTES), PostgresRecords(postgres, NOTES),
    )
    async with asyncio.timeout(60):
        for beneath in (file, link, postgres):
            await beneath.start()
        print([await noted(records) for records in stores])
        for beneath in (file, link, postgres):
            await beneath.close()

asyncio.run(main())
"""
SIZED = """
import asyncio, pathlib, sys
from toolhub.v1 import artifact_service_pb2 as pb
from toolhub.v1.artifact_service_pb2_grpc import ArtifactServiceStub
sys.path.insert(0, {root!r})
from tests.hub import running_hub

async def main():
    async with running_hub(pathlib.Path({home!r}), policy={policy!r}) as hub:
        artifacts = ArtifactServiceStub(hub.channel)
        parts = [pb.WriteArtifactRequest(header=pb.ArtifactHeader()), pb.WriteArtifactRequest(chunk=b"hello")]
        written = await artifacts.WriteArtifact(iter(parts))
        request = pb.GetArtifactSizeRequest(artifact_id=written.artifact.artifact_id)
        print((await artifacts.GetArtifactSize(request)).size_bytes)

asyncio.run(main())
"""
POLICY = (
    "extends: none\ngrants: [{principals: ['*'], capabilities: ['*']}]\nroles: [{principals: [local], roles: [agent]}]"
)


def snippets(heading: str, language: str = "python") -> list[str]:
    """The code of one recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [textwrap.dedent(code) for code in re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)]


def places(heading: str) -> list[str]:
    """Files that the numbered steps name first."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d\. `([^`]+)`", section, re.MULTILINE)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of the server, which programs below import instead of the real one."""
    shutil.copytree(ROOT / SERVICE, tmp_path / "copy/toolhub_service", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


def put(file: Path, before: str, text: str) -> None:
    """Put text before the first place where another one stands."""
    old = file.read_text()
    assert before in old, f"{file.name} has no {before!r}"
    file.write_text(old.replace(before, text + before, 1))


def naming(word: str, *folders: str) -> set[str]:
    """Files of the tree in which a word stands."""
    files = (file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in {".py", ".proto"})
    return {str(file.relative_to(ROOT)) for file in files if re.search(word, file.read_text())}


async def program(copy: Path, *words: str) -> str:
    """What it wrote; it imports the copy, and generated code of the copy, if there is any."""
    path = os.pathsep.join([str(copy), str(copy / "gen"), str(ROOT / "gen/python")])
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    return output.decode()


async def called(copy: Path, home: Path, tool: str, args: str) -> str:
    text = HUB.format(root=str(ROOT), home=str(home), policy=POLICY, tool=tool, args=args)
    return (await program(copy, "-c", text)).strip().splitlines()[-1]


async def run_pytest(copy: Path, *files: Path | str) -> str:
    """The last line of pytest, run on files that test the copy."""
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}")
    return (await program(copy, *words, *map(str, files))).strip().splitlines()[-1]


async def test_a_core_tool_takes_a_class_and_its_place_in_the_list(copy: Path, tmp_path: Path) -> None:
    tool, test = snippets("Add a core tool")
    file = copy / "toolhub_service/tools/util_tools.py"
    put(file, "def util_tools(", tool + "\n\n")
    put(file, "TextTruncate(), TimeNow(clock)]", "TextReverse(), ")
    assert await called(copy, tmp_path / "home", "core/util.text.reverse", '{"text": "abc"}') == '{"text":"cba"}'
    _, test_place = places("Add a core tool")
    (tmp_path / Path(test_place).name).write_text(test)
    family = ROOT / test_place.replace("text_reverse", "template_render")
    assert " failed" not in (last := await run_pytest(copy, tmp_path / Path(test_place).name, family)), last
    assert " passed" in last
    page = "import sys; sys.path.append('.ci/docs'); import tools_page; print(tools_page.page())"
    assert "core/util.text.reverse" in await program(copy, "-c", page)
    ruff = ("-m", "ruff", "--config", str(ROOT / "pyproject.toml"))
    assert "All checks passed!" in await program(copy, *ruff[:2], "check", *ruff[2:], str(file))


async def test_a_source_kind_takes_its_folder_and_a_line_in_the_list(copy: Path, tmp_path: Path) -> None:
    """In the place of SKILL, for which the contract has a value: the copy has no generated code."""
    (kind,) = snippets("Add a source kind")
    folder = copy / "toolhub_service/adapters/acme"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kind.py").write_text(
        IMPORTS + kind.replace("ToolKind.ACME", "ToolKind.SKILL").replace('"acme"', '"skill"')
    )
    (folder / "adapter.py").write_text(ADAPTER.replace("ToolKind.ACME", "ToolKind.SKILL"))
    kinds = copy / "toolhub_service/app/kinds.py"
    put(kinds, "from toolhub_service.adapters.comfyui", "from toolhub_service.adapters.acme.kind import ACME\n")
    kinds.write_text(kinds.read_text().replace("COMFYUI, SKILL)", "COMFYUI, ACME)"))
    home = tmp_path / "home"
    (home / "hub").mkdir(parents=True)
    sources = home / "hub/sources.yaml"
    sources.write_text("sources: {shop: {kind: skill, url: http://acme.example}}")
    sources.chmod(0o600)
    assert await called(copy, home, "shop/greet", "{}") == '{"said":"hello"}'
    checked = await program(copy, "-m", "toolhub_service", "sources", "check", "--json", str(sources))
    assert '"sources": ["shop"]' in checked, checked
    sources.write_text("sources: {shop: {kind: skill}}")
    checked = await program(copy, "-m", "toolhub_service", "sources", "check", str(sources))
    assert "sources.shop.url: must not be empty" in checked
    assert len(places("Add a source kind")) == 6


async def test_a_stored_noun_takes_its_record_its_bytes_and_its_columns(
    copy: Path, tmp_path: Path, redis_url: str, postgres_url: str
) -> None:
    record, codec, table = snippets("Add a stored noun or a backend")
    stores = copy / "toolhub_service/stores"
    (copy / "toolhub_service/domain/note.py").write_text("from msgspec import Struct\n\n\n" + record)
    put(stores / "codec.py", "from toolhub_service.domain.", "from toolhub_service.domain.note import Note\n")
    (stores / "codec.py").write_text((stores / "codec.py").read_text() + codec)
    (stores / "note_records.py").write_text(NOTE_IMPORTS + table)
    text = await program(copy, "-c", NOTED.format(home=str(tmp_path), redis=redis_url, postgres=postgres_url))
    assert text.strip() == "[True, True, True, True]", text
    named = places("Add a stored noun or a backend")
    assert len(named) == 4
    assert all((ROOT / place).exists() for place in (named[1], named[3]))


def test_a_setting_is_named_in_no_other_place_than_the_recipe_says() -> None:
    """Shown by one that nothing else reads."""
    found = naming(r"\bbreaker_cooldown_s\b", str(SERVICE))
    assert found == {place.replace("<part>", "calls") for place in places("Add a setting")}


def test_a_step_is_named_in_no_other_place_than_the_recipe_says() -> None:
    """Told by one that has nothing besides."""
    found = naming(r"(?i)\b(STEP_NAME_)?take_budget\b", "proto", str(SERVICE))
    assert found == set(places("Add a step"))


async def test_an_rpc_takes_its_messages_its_method_and_its_name_among_the_services(copy: Path, tmp_path: Path) -> None:
    buf = need_program("buf")
    rpc, messages = snippets("Add an RPC", "proto")
    method, name = snippets("Add an RPC")
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "proto", tree / "proto")
    shutil.copy2(ROOT / "buf.yaml", tree)
    proto = tree / "proto/toolhub/v1/artifact_service.proto"
    put(proto, "  // Streams the bytes in order", textwrap.indent(rpc, "  "))
    put(proto, "// Asks for the bytes of one artifact.", messages + "\n")
    for check in ("lint",), ("format", "--diff", "--exit-code", "--exclude-path", "proto/buf"):
        process = await asyncio.create_subprocess_exec(buf, *check, cwd=tree, stdout=subprocess.PIPE)
        printed, _ = await process.communicate()
        assert (process.returncode, printed) == (0, b""), printed
    shutil.copytree(ROOT / "gen/python", copy / "gen", ignore=shutil.ignore_patterns("__pycache__"))
    out = ("--python_out", "--grpc_python_out")
    await program(
        copy, "-m", "grpc_tools.protoc", f"--proto_path={tree / 'proto'}", *(f"{each}={copy / 'gen'}" for each in out),
        str(proto),
    )  # fmt: skip
    servicer = copy / "toolhub_service/transport/artifact_servicer.py"
    put(servicer, "    async def ReadArtifact(", textwrap.indent(method, "    ") + "\n")
    text = await program(copy, "-c", SIZED.format(root=str(ROOT), home=str(tmp_path / "home"), policy=POLICY))
    assert text.strip().splitlines()[-1] == "5"
    services = tmp_path / "test_services.py"
    shutil.copy2(ROOT / places("Add an RPC")[2], services)
    assert " failed" in await run_pytest(copy, services)
    put(services, '        "GetArtifact": UNARY,', textwrap.indent(name, "        "))
    assert " failed" not in (last := await run_pytest(copy, services)), last


def test_an_rpc_is_named_in_no_other_place_than_the_recipe_says() -> None:
    """Told by one that others may call, too; the command line and the clients call it."""
    found = naming(r"\bGetArtifact\b", "proto", str(SERVICE), "tests/unit/contract")
    named = {place.replace("<name>", "artifact") for place in places("Add an RPC")}
    assert {file for file in found if "/cli/" not in file} == named
