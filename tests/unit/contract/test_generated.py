"""The generated code imports as promised, asks for no newer runtime than the project does, and its flavours agree."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

from toolhub.v1 import call_pb2, tool_service_pb2

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "gen" / "python" / "toolhub" / "v1"


def floor(package: str) -> tuple[int, ...]:
    """The least version of a package that pyproject.toml allows."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (stated,) = (line.split(">=")[1] for line in dependencies if line.split(">=")[0] == package)
    return tuple(int(part) for part in stated.split(".")[:3])


def test_the_floor_of_grpcio_is_the_version_that_the_stubs_demand() -> None:
    demanded = {
        match[1]
        for path in GENERATED.glob("*_pb2_grpc.py")
        if (match := re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", path.read_text()))
    }
    assert {tuple(int(part) for part in version.split(".")) for version in demanded} == {floor("grpcio")}


def test_the_floor_of_protobuf_is_the_version_that_the_messages_demand() -> None:
    demanded = {
        tuple(int(number) for number in match.groups())
        for path in GENERATED.glob("*_pb2.py")
        if (match := re.search(r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+),", path.read_text()))
    }
    assert demanded == {floor("protobuf")}


@pytest.mark.parametrize("path", sorted(GENERATED.glob("*_pb2*.py")), ids=lambda path: path.stem)
def test_every_generated_module_imports_and_has_its_types(path: Path) -> None:
    importlib.import_module(f"toolhub.v1.{path.stem}")
    assert path.with_suffix(".pyi").is_file()


def test_the_dataclass_flavour_reads_and_writes_the_same_bytes() -> None:
    flavour = importlib.import_module("toolhub_betterproto.toolhub.v1")
    intent = flavour.ToolIntent(tool="core/fs.readText", args_json=b'{"path":"a"}', purpose="look")
    request = flavour.InvokeRequest(intent=intent, mode=flavour.InvokeMode.DRY_RUN)

    read = tool_service_pb2.InvokeRequest.FromString(bytes(request))

    assert read.intent.args_json == b'{"path":"a"}'
    assert read.mode == call_pb2.INVOKE_MODE_DRY_RUN
    assert flavour.InvokeRequest.parse(read.SerializeToString()) == request
