"""docs/architecture.md against the tree."""

from __future__ import annotations

import re
import tomllib

from tests.unit.docs.pages_of_docs import DOCS, ROOT
from toolhub_service.domain import approval, artifact, job_ports, ports, source, tool, verdict
from toolhub_service.domain.result import StepName

TEXT = (DOCS / "architecture.md").read_text()
PACKAGE = ROOT / "service" / "toolhub_service"


def test_the_layers_are_those_of_the_check() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.sub(r"[()]", "", layer) for layer in contracts[0]["layers"]]
    rest = TEXT.partition("```\n__main__ > cli")[2].partition("```")[0]
    assert " ".join(f"__main__ > cli{rest}".split()).split(" > ") == layers


def test_the_picture_names_every_layer() -> None:
    picture = (DOCS / "architecture.svg").read_text()
    names = re.findall(r'font-weight="bold"[^>]*>([^<]+)<', picture)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {word for layer in contracts[0]["layers"] for word in re.findall(r"\w+", layer)}
    assert set(names) - {"agent", "the world"} == layers


def test_every_step_stands_there_with_its_file() -> None:
    for number, step in enumerate(StepName, 1):
        row = re.search(rf"^\| {number} \| {step.value} \| `(\S+?)`", TEXT, re.MULTILINE)
        assert row is not None, step
        assert (PACKAGE / row[1]).is_file()


def test_every_folder_stands_there_and_exists() -> None:
    tree = TEXT.partition("Inside the server:")[2].partition("Later")[0]
    documented = set(re.findall(r"^(\w+)/ ", tree, re.MULTILINE))
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    built = {name for name in there if len(list((PACKAGE / name).glob("*.py"))) > 1}
    assert documented == built


def test_every_file_named_exists() -> None:
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", TEXT):
        assert (PACKAGE / name).is_file(), name


def test_every_port_stands_there() -> None:
    modules = (ports, job_ports, approval, artifact, source, tool, verdict)
    named = [(name, each) for module in modules for name, each in vars(module).items()]
    protocols = {name for name, each in named if getattr(each, "_is_protocol", False)} - {"Protocol"}
    table = TEXT.partition("| port |")[2].partition("\n\n")[0]
    assert protocols <= set(re.findall(r"`(\w+)`", table))


def test_a_granted_call_is_made_in_one_place() -> None:
    makers = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"\bGrantedCall\(\n", path.read_text())]
    assert makers == ["steps.py"]
