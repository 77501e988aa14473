"""Where LangChain tools may be loaded from, and how failures to load are reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.langchain_source import FAKES, OpenedSource, a_source, opened
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.domain.source import Trust
from toolhub_service.domain.tool import ToolKind


def names(desk: OpenedSource) -> set[str]:
    return {definition.spec.resource_id for definition in desk.discovery.definitions}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("echo", {"echo"}),
        ("LOOP_TOOLS", {"echo", "whoami", "truly_async"}),
        ("Toolkit", {"kit_one", "echo"}),
        ("TrulyAsync", {"truly_async"}),
        ("made", {"made one!"}),
    ],
)
async def test_a_tool_a_list_a_toolkit_class_a_tool_class_and_a_function_are_loaded(
    reference: str, expected: set[str]
) -> None:
    async with opened(reference) as desk:
        assert expected <= names(desk)


async def test_args_go_to_the_classes_and_functions() -> None:
    async with opened("Toolkit", args={"prefix": "own"}) as desk:
        assert names(desk) == {"own_one", "echo"}


async def test_tools_that_cannot_be_loaded_are_reported_by_class_and_affect_no_other() -> None:
    async with opened("echo", "fails", "nothing", "absent", "not-a-name", "no_such_module:x", "os:getcwd") as desk:
        assert names(desk) == {"echo"}
        problems = desk.discovery.problems
    assert len(problems) == 6
    assert f"{FAKES}:fails: it could not be loaded: ConnectionError" in problems
    assert f"{FAKES}:absent: it could not be loaded: AttributeError" in problems
    assert "os:getcwd: the module is not in a trusted namespace (tools.trusted_namespaces)" in problems
    assert "hunter2" not in str(problems)


@pytest.mark.promise("langchain.trusted-only")
async def test_an_untrusted_module_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests_fakes_evil.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    source = a_source("tests_fakes_evil:tool", "tests.fakesevil:tool", trusted=["tests_fakes", "tests.fakes"])
    with pytest.raises(ToolFailure) as caught:
        await source.discover()
    assert caught.value.error.kind is ErrorKind.TOOL_UNAVAILABLE
    assert caught.value.error.message.count("not in a trusted namespace") == 2
    assert "tests_fakes_evil" not in sys.modules


async def test_failed_modules_are_loaded_again_and_loaded_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fakes import langchain_tools

    async with opened("Toolkit", "late") as desk:
        first = desk.source.tool("kit_one")
        assert len(desk.discovery.problems) == 1
        monkeypatch.setattr(langchain_tools, "late", langchain_tools.whoami, raising=False)
        again = await desk.source.discover()
        assert again.problems == ()
        assert {one.spec.resource_id for one in again.definitions} == {"kit_one", "echo", "whoami"}
        assert desk.source.tool("kit_one") is first


async def test_causes_go_to_the_log_and_not_to_the_problems() -> None:
    attach: list[tuple[str, BaseException]] = []
    source = a_source(f"{FAKES}:echo", f"{FAKES}:fails")
    source._troubled = lambda name, error: attach.append((name, error))
    discovery = await source.discover()
    assert [(name, type(error)) for name, error in attach] == [("desk", ConnectionError)]
    assert "postgresql" not in str(discovery.problems)


@pytest.mark.parametrize(("allowed", "found"), [(["desk-kit"], 2), (["*"], 2), ([], 0)])
async def test_entry_points_are_loaded_when_they_are_named(
    allowed: list[str], found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "desk_kit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: desk-kit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[toolhub.langchain]\ndesk-kit = {FAKES}:Toolkit\n")
    monkeypatch.syspath_prepend(tmp_path)
    async with opened(entry_points=allowed, trusted=()) as desk:
        assert len(desk.discovery.definitions) == found


async def test_an_entry_point_that_no_package_offers_is_a_problem() -> None:
    async with opened("echo", entry_points=["missing"]) as desk:
        (problem,) = desk.discovery.problems
        assert problem.startswith("entry point missing: no installed package offers it")


async def test_of_two_tools_that_read_alike_one_has_a_suffix() -> None:
    async with opened("echo", "BROKEN_TOOLS", "made") as desk:
        named = {one.spec.resource_id: one.spec.name for one in desk.discovery.definitions}
        assert named["made_one_"] == "desk/made_one_"
        assert named["made one!"].startswith("desk/made_one__")
        assert not any("made" in problem for problem in desk.discovery.problems)


async def test_the_source_describes_itself() -> None:
    async with opened("echo") as desk:
        source: Any = desk.source
        assert (source.name, source.kind, source.trust) == ("desk", ToolKind.LANGCHAIN, Trust.ALWAYS)
        assert source.endpoint == f"python:{FAKES}:echo"
        assert desk.discovery.server.startswith("langchain-core 1.")
        assert desk.discovery.ttl_s is None
        source.listen(lambda: None)
        await source.start()
        assert source.diagnostics() == ()
