"""Real public skills: a commit of a repository is fetched by a hub, loads with the right warnings, and some of its
scripts run confined. `make acceptance-skills`; the repository's files are never kept here.

`TEST_SKILLS_GIT` names another place of the same repository, such as a mirror.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.terminal import ROOT
from tests.hub import running_hub
from tests.rpc import real_servers as real
from tests.rpc.skill_runs import POLICY, sidecar
from toolhub.v1 import registry_service_pb2 as registry_pb
from toolhub.v1 import source_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.adapters.skill.checkout import folder_of
from toolhub_service.adapters.skill.kind import SkillEntry

REPOSITORY: Final = os.environ.get("TEST_SKILLS_GIT") or "https://github.com/anthropics/skills"
COMMIT: Final = "9d2f1ae187231d8199c64b5b762e1bdf2244733d"
PYTHON: Final = ROOT / ".venv/examples/skills/bin/python"
WARNED: Final = {
    "claude-api": ["`description` has 1,068 characters", "Its instructions have 569 lines"],
    "docx": ["Its instructions have 584 lines"],
}
"""Of 17 skills these break a rule."""

ENTRY: Final = """
import json, os, subprocess, sys
given, out = json.load(sys.stdin), os.environ["TOOLHUB_OUTPUT"]
told = []
for words in given["commands"]:
    words = [word.replace("OUT", out) for word in words]
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    told.append(ran.stdout + ran.stderr)
    if ran.returncode:
        sys.exit(f"{words}: {told[-1]}")
json.dump({"told": told}, sys.stdout)
"""
"""Runs command lines of the skill, in its folder; `OUT` in them is where files become artifacts."""

DOCX: Final = """
import sys, zipfile
ns, office = "http://schemas.openxmlformats.org", "application/vnd.openxmlformats"
main = f"{office}-officedocument.wordprocessingml.document.main+xml"
with zipfile.ZipFile(sys.argv[1], "w") as file:
    file.writestr("[Content_Types].xml", f'<Types xmlns="{ns}/package/2006/content-types"><Default Extension="rels" '
        f'ContentType="{office}-package.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>')
    file.writestr("_rels/.rels", f'<Relationships xmlns="{ns}/package/2006/relationships"><Relationship Id="rId1" '
        f'Type="{ns}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>')
    file.writestr("word/document.xml", f'<w:document xmlns:w="{ns}/wordprocessingml/2006/main"><w:body><w:p><w:r>'
        '<w:t>Hello</w:t></w:r></w:p></w:body></w:document>')
"""
PDF: Final = (
    "import sys; from pypdf import PdfWriter; w = PdfWriter(); w.add_blank_page(200, 200); w.write(sys.argv[1])"
)
GIF: Final = (
    "import sys; from PIL import Image; from core.gif_builder import GIFBuilder; b = GIFBuilder(64, 64, 5); "
    "[b.add_frame(Image.new('RGB', (64, 64), (n * 40, 0, 0))) for n in range(5)]; b.save(sys.argv[1])"
)
RUNS: Final[dict[str, tuple[Sequence[Sequence[str]], Sequence[str]]]] = {
    "skill-creator": (
        [["scripts/quick_validate.py", "."], ["-m", "scripts.package_skill", ".", "OUT"]],
        ["Skill is valid!", "Successfully packaged"],
    ),
    "docx": (
        [
            ["-c", DOCX, "OUT/a.docx"],
            ["scripts/office/unpack.py", "OUT/a.docx", "OUT/unpacked"],
            ["scripts/office/pack.py", "OUT/unpacked", "OUT/b.docx", "--validate", "false"],
        ],
        ["Unpacked", "packed"],
    ),
    "pdf": (
        [
            ["-c", PDF, "OUT/a.pdf"],
            ["scripts/check_fillable_fields.py", "OUT/a.pdf"],
            ["scripts/extract_form_structure.py", "OUT/a.pdf", "OUT/structure.json"],
        ],
        ["does not have fillable form fields", "1 pages"],
    ),
    "slack-gif-creator": ([["-c", GIF, "OUT/a.gif"]], []),
}
"""By skill: command lines of its own scripts, and words that they say."""
READ: Final = {"skill": {"kind": "skill", "skills": [{"git": REPOSITORY, "commit": COMMIT, "path": "skills"}]}}


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("skills")


async def test_public_skills_load_with_the_right_warnings(fetched: Path) -> None:
    source = {**READ["skill"], "trust": "always"}
    real.write_sources(fetched, {"skill": source})
    async with running_hub(fetched, policy=POLICY) as hub:
        request = registry_pb.RefreshSourcesRequest(sources=["skill"])
        (status,) = (await hub.registry.RefreshSources(request)).sources
        if status.state == source_pb2.SOURCE_STATE_DOWN:
            pytest.skip(f"{REPOSITORY} cannot be reached: needs git and the network ({status.message})")
        assert status.state == source_pb2.SOURCE_STATE_READY, status.message
        assert status.tools == 17
        warned = {name: [line for line in status.diagnostics if line.startswith(f"skill {name}: ")] for name in WARNED}
        for name, sentences in WARNED.items():
            assert len(warned[name]) == len(sentences), warned
            assert all(map(str.__contains__, warned[name], sentences)), warned
        assert len(status.diagnostics) == sum(map(len, WARNED.values()))
        names = [tool.name for tool in (await hub.stub.ListTools(pb.ListToolsRequest(page_size=100))).tools]
        for name in (name for name in names if name.startswith("skill/")):
            assert len((await hub.value(name))["instructions"]) > 500, name
        found = await hub.stub.SearchTools(pb.SearchToolsRequest(query="fill in a PDF form", page_size=1))
        assert found.hits[0].tool.name == "skill/pdf.read"


@pytest.mark.parametrize("name", RUNS)
async def test_scripts_of_public_skills_run_confined(fetched: Path, tmp_path: Path, name: str) -> None:
    entry = SkillEntry(git=REPOSITORY, commit=COMMIT, path="skills")
    kept = folder_of(fetched / "hub" / "skills", entry)
    if not kept.is_dir():
        pytest.skip("the repository was not fetched: make acceptance-skills, with git and the network")
    if not PYTHON.exists():
        pytest.skip("the libraries that the scripts import are not installed: make acceptance-skills")
    skill = shutil.copytree(kept / name, tmp_path / "skills" / name)
    (skill / "entry.py").write_text(ENTRY)
    limits = {"artifacts": 100, "memory_bytes": 4 * 1024**3}
    whole = sidecar("script", entry={"argv": ["{python}", "entry.py"]}, limits=limits, artifacts=[{"name": "*"}])
    (skill / "toolhub.json").write_text(whole)
    source = {"kind": "skill", "trust": "always", "skills": [{"path": str(tmp_path / "skills")}]}
    settings: dict[str, Any] = {"skills": {"python": str(PYTHON)}}
    commands, words = RUNS[name]
    async with real.sourced_hub(tmp_path, {"skill": source}, policy=POLICY, settings=settings) as hub:
        result = await hub.invoke(f"skill/{name}", {"commands": list(map(list, commands))})
        assert result.ok, f"{result.error.message} {dict(result.error.details)}"
        listed = "\n".join(json.loads(result.result_json)["told"])
        assert all(word.lower() in listed.lower() for word in words), listed
        levels = {str(dict(evidence.attributes)) for evidence in result.evidence}
        assert any("bubblewrap" in level or "landlock" in level for level in levels), levels
        assert result.artifacts
