"""Real tools: the file toolkit of examples/langchain_files and the JSON tools of langchain-community."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.langchain_source import OpenedSource, opened
from toolhub_service.adapters.langchain.kind import LangChainSource
from toolhub_service.app.config_files.sources_file import read_sources
from toolhub_service.domain.errors.failure import ErrorKind
from toolhub_service.schema.tool_schemas import ToolSchemas

EXAMPLE = Path(__file__).parents[4] / "examples/langchain_files/sources.yaml"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the package says that it is not developed any more
    pytest.mark.slow,
]


@pytest.fixture
async def papers(tmp_path: Path) -> AsyncIterator[OpenedSource]:
    source = read_sources(EXAMPLE).sources["papers"]
    assert isinstance(source, LangChainSource)
    root = tmp_path / "papers"
    root.mkdir()
    (root / "a.txt").write_text("Error: is how this paper begins.\nAnd how it goes on.")
    (tmp_path / "outside.txt").write_text("outside")
    async with opened(
        *source.load,
        args=source.args | {"root_dir": str(root)},
        tools=source.tools,
        trusted=("langchain_community",),
        processes=1,
    ) as papers:
        yield papers


async def test_the_seven_file_tools_work_and_their_error_texts_are_errors(papers: OpenedSource, tmp_path: Path) -> None:
    assert {one.spec.resource_id for one in papers.discovery.definitions if not one.problem} == {
        *("copy_file", "file_delete", "file_search", "move_file", "read_file", "write_file", "list_directory"),
    }
    root = tmp_path / "papers"
    assert (await papers("read_file", file_path="a.txt"))["text"].startswith("Error: is how")
    assert "written" in (await papers("write_file", file_path="b.txt", text="B"))["text"]
    assert (root / "b.txt").read_text() == "B"
    assert "copied" in (await papers("copy_file", source_path="b.txt", destination_path="c.txt"))["text"]
    assert "moved" in (await papers("move_file", source_path="c.txt", destination_path="d.txt"))["text"]
    assert set((await papers("list_directory", dir_path="."))["text"].split()) == {"a.txt", "b.txt", "d.txt"}
    assert (await papers("file_search", pattern="b*"))["text"] == "b.txt"
    assert "deleted" in (await papers("file_delete", file_path="d.txt"))["text"]
    assert {path.name for path in root.iterdir()} == {"a.txt", "b.txt"}

    for name, args in {
        "read_file": {"file_path": "../outside.txt"},
        "write_file": {"file_path": "../outside.txt", "text": "x"},
        "copy_file": {"source_path": "../outside.txt", "destination_path": "e.txt"},
        "move_file": {"source_path": "../outside.txt", "destination_path": "e.txt"},
        "file_delete": {"file_path": "../outside.txt"},
        "list_directory": {"dir_path": ".."},
        "file_search": {"dir_path": "..", "pattern": "*"},
    }.items():
        error = await papers.refused(name, **args)
        assert error.kind is ErrorKind.EXECUTION_ERROR, name
        assert "Access denied" in error.message, name
    assert "no such file" in (await papers.refused("read_file", file_path="absent.txt")).message
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    assert "codec" in (await papers.refused("read_file", file_path="binary")).message
    assert (tmp_path / "outside.txt").read_text() == "outside"


async def test_the_examples_risk_annotations_count(papers: OpenedSource) -> None:
    assert papers.spec("read_file").annotations.read_only
    assert papers.spec("list_directory").annotations.read_only
    assert papers.spec("file_delete").annotations.destructive
    assert not papers.spec("write_file").annotations.read_only
    assert ToolSchemas(papers.spec("write_file")).validate_input({"file_path": "a", "text": "b", "append": "yes!"})


async def test_json_tools_read_their_document() -> None:
    async with opened(
        "tests.fakes.langchain_papers:json_tools", trusted=("tests.fakes",), processes=1, max_result_bytes=10_000
    ) as desk:
        assert await desk("json_spec_get_value", tool_input='data["paper"]["year"]') == {"text": "2017"}
        assert await desk("json_spec_list_keys", tool_input='data["paper"]') == {"text": "['title', 'year']"}
