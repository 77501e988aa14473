from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports.adapter_suite import SILENT, granted
from toolhub_service.adapters.core import CoreAdapter, Workspaces
from toolhub_service.adapters.custom import CustomTools, ToolReference, is_trusted, load_custom_tools
from toolhub_service.domain.tool import ToolState
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.schema.compiled import compile_schema

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "custom_tool"

GOOD = """
    from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

    class In(ToolInput, frozen=True):
        text: str = ""

    class Good(Tool[In, ToolOutput]):
        name, description, In, Out = "{name}", "A tool.", In, ToolOutput

        def __init__(self, key: str = "") -> None:
            self.key = key

        async def run(self, args, context):
            return ToolOutput()
"""


class Packages:
    """Importable packages that exist for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, dotted: str, text: str) -> None:
        *parents, name = dotted.split(".")
        place = self.folder.joinpath(*parents)
        place.mkdir(parents=True, exist_ok=True)
        for depth in range(1, len(parents) + 1):
            self.folder.joinpath(*parents[:depth], "__init__.py").touch()
        (place / f"{name}.py").write_text(textwrap.dedent(text))

    def distribution(self, name: str, entry_points: dict[str, str]) -> None:
        place = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{entry} = {value}\n" for entry, value in entry_points.items())
        (place / "entry_points.txt").write_text(f"[toolhub.tools]\n{lines}")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Packages(tmp_path)
    for name in set(sys.modules) - known:
        if name.split(".")[0] in {"acme", "acme_evil", "acme_tools"}:
            del sys.modules[name]


def load(path: str, *trusted: str) -> CustomTools:
    return load_custom_tools([ToolReference(path)], trusted_namespaces=trusted)


@pytest.mark.parametrize(
    ("module", "trusted", "expected"),
    [
        ("acme.tools", ["acme.tools"], True),
        ("acme.tools.text", ["acme.tools"], True),
        ("acme.tools_evil", ["acme.tools"], False),
        ("acme.toolsevil", ["acme.tools"], False),
        ("acme", ["acme.tools"], False),
        ("acme.tools..os", ["acme.tools"], False),
        ("..acme.tools", ["acme.tools"], False),
        ("acme.tools.", ["acme.tools"], False),
        ("acme/tools", ["acme"], False),
        ("os", [""], False),
        ("os", ["."], False),
        ("os", [], False),
        ("Acme.tools", ["acme"], False),
    ],
)
def test_namespaces_are_compared_by_whole_components(module: str, trusted: list[str], expected: bool) -> None:
    assert is_trusted(module, trusted) is expected


def test_a_trusted_tool_is_loaded_with_its_arguments(packages: Packages) -> None:
    packages.module("acme.good", GOOD.format(name="acme/good.run"))
    found = load_custom_tools([ToolReference("acme.good:Good", {"key": "k"})], trusted_namespaces=["acme"])
    assert found.unavailable == ()
    assert [(tool.name, vars(tool)["key"]) for tool in found.tools] == [("acme/good.run", "k")]


@pytest.mark.promise("custom.trusted-only")
@pytest.mark.parametrize(
    "path", ["acme_evil.spy:Good", "acme..spy:Good", "acme_evil.spy", "acme_evil.spy:a.b", ":Good"]
)
def test_nothing_is_imported_before_the_name_is_trusted(packages: Packages, path: str) -> None:
    witness = packages.folder / "imported"
    packages.module("acme_evil.spy", f"open({str(witness)!r}, 'w').close()")
    packages.module("acme.spy", f"open({str(witness)!r}, 'w').close()")
    (refused,) = load(path, "acme").unavailable
    assert refused.spec().state is ToolState.UNAVAILABLE
    assert not witness.exists()
    assert not any(name.startswith("acme") for name in sys.modules)


@pytest.mark.promise("custom.trusted-only")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("raise RuntimeError('password=hunter2')", "RuntimeError"),
        ("raise SystemExit(1)", "SystemExit"),
        ("def broken(:", "SyntaxError"),
        ("class Good: pass", "not a subclass of Tool"),
        ("other = 1", "AttributeError"),
        (GOOD.format(name="core/fs.readText"), "reserved"),
        (GOOD.format(name="no namespace"), "namespace/path.verb"),
        (GOOD.format(name="acme/x.y").replace("async def", "def"), "not an async function"),
        (GOOD.format(name="acme/x.y").replace("self.key = key", "raise OSError('hunter2')"), "OSError"),
        (GOOD.format(name="acme/x.y").replace('key: str = ""', "key: str"), "TypeError"),
    ],
)
def test_a_broken_tool_is_listed_with_the_class_of_its_error(packages: Packages, text: str, reason: str) -> None:
    packages.module("acme.good", text)
    found = load("acme.good:Good", "acme")
    assert found.tools == ()
    spec = found.unavailable[0].spec()
    assert reason in spec.state_reason
    assert "hunter2" not in spec.state_reason
    assert spec.name == "custom/acme_good_Good"
    catalog = ToolCatalog(check_schema=compile_schema)
    catalog.register(spec)
    assert catalog.get(spec.name) is spec


@pytest.mark.promise("custom.trusted-only")
def test_a_broken_tool_delays_no_other(packages: Packages) -> None:
    packages.module("acme.good", GOOD.format(name="acme/good.run"))
    packages.module("acme.bad", "raise ValueError")
    references = [ToolReference("acme.bad:Good"), ToolReference("acme.good:Good")]
    found = load_custom_tools(references, trusted_namespaces=["acme"])
    assert [tool.name for tool in found.tools] == ["acme/good.run"]
    assert len(found.unavailable) == 1


def test_the_second_of_two_tools_of_one_name_is_refused(packages: Packages) -> None:
    packages.module("acme.good", GOOD.format(name="acme/good.run"))
    packages.module("acme.twin", GOOD.format(name="acme/good.run"))
    references = [ToolReference("acme.good:Good"), ToolReference("acme.twin:Good")]
    found = load_custom_tools(references, trusted_namespaces=["acme"])
    assert len(found.tools) == 1
    assert "acme/good.run" in found.unavailable[0].reason


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        ([], []),
        (["*"], ["one/x.run", "two/x.run"]),
        (["Acme_Tools"], ["one/x.run"]),
        (["two"], ["two/x.run"]),
        (["acme-tools:one"], ["one/x.run"]),
        (["acme-tools:two"], []),
        (["three"], []),
    ],
)
def test_only_entry_points_that_are_allowed_are_loaded(
    packages: Packages, allowed: list[str], names: list[str]
) -> None:
    for name in ("one", "two"):
        packages.module(f"acme.{name}", GOOD.format(name=f"{name}/x.run"))
    packages.distribution("acme-tools", {"one": "acme.one:Good"})
    packages.distribution("other-tools", {"two": "acme.two:Good"})
    found = load_custom_tools(allowed_entry_points=allowed)
    assert [tool.name for tool in found.tools if tool.name.endswith("/x.run")] == names


def test_an_entry_point_that_two_packages_offer_is_not_loaded_by_its_bare_name(packages: Packages) -> None:
    packages.module("acme.one", GOOD.format(name="one/x.run"))
    packages.module("acme.two", GOOD.format(name="two/x.run"))
    packages.distribution("acme-tools", {"same": "acme.one:Good"})
    packages.distribution("squatter", {"same": "acme.two:Good"})
    assert load_custom_tools(allowed_entry_points=["same"]).tools == ()
    assert [tool.name for tool in load_custom_tools(allowed_entry_points=["acme-tools:same"]).tools] == ["one/x.run"]


async def test_the_example_loads_and_runs(packages: Packages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    reference = ToolReference("acme_tools.text:CountWords", {"ignore": "the"})
    found = load_custom_tools([reference], trusted_namespaces=["acme_tools"])
    adapter = CoreAdapter([], Workspaces(str(tmp_path)), custom_tools=found.tools)
    (spec,) = adapter.custom_specs()
    catalog = ToolCatalog(check_schema=compile_schema)
    catalog.register(spec)
    outcome = await adapter.execute(granted(spec, {"text": "the cat the cat sat", "top": 1}), SILENT)
    assert outcome.value == {"words": [{"word": "cat", "count": 2}], "totalWords": 3}
    assert outcome.evidence[0].summary == "counted 3 words"


def test_the_examples_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(EXAMPLE), str(EXAMPLE)]
    search = f"{EXAMPLE}:{ROOT / 'service'}"
    done = subprocess.run(command, env={"PYTHONPATH": search}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_page_shows_the_example_as_it_is() -> None:
    page, _, _ = (ROOT / "docs" / "custom-tools.md").read_text().partition("## Without code")
    snippets = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    files = {
        "python": [EXAMPLE / "acme_tools" / "text.py", EXAMPLE / "acme_tools" / "sign.py"],
        "yaml": [EXAMPLE / "toolhub.yaml"],
        "toml": [EXAMPLE / "pyproject.toml"],
    }
    assert len(snippets) == 6
    for language, snippet in snippets:
        assert any(snippet in file.read_text() for file in files[language])
