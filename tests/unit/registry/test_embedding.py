from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from tests.ports.catalog_suite import tool
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.registry.catalog import ToolCatalog
from toolhub_service.registry.embedding import ToolMeanings
from toolhub_service.registry.search import ToolSearch


class HashedWords:
    """An embedder whose vectors are near where texts share words, and for which physicians are doctors."""

    name = "hashed-words"
    dimension = 64

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.failure: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked_often = asyncio.Event()
        self.is_broken = False

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.batches.append(len(texts))
        if len(self.batches) >= 3:
            self.asked_often.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [[0.0]] if self.is_broken else [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = np.zeros(self.dimension)
        for word in text.lower().replace("surgeon", "operates").split():
            vector[zlib.crc32(word.encode()) % self.dimension] += 1.0
        return [float(number) for number in vector]


class Stage:
    def __init__(self, *specs: ToolSpec) -> None:
        self.catalog = ToolCatalog(check_schema=lambda schema: None)
        self.catalog.register_all(specs)
        self.embedder = HashedWords()
        self.told: list[str] = []
        self.meanings = ToolMeanings(
            self.catalog, self.embedder, notify=self.told.append, timeout_s=0.05, batch=4, retry_s=0.001
        )
        self.search = ToolSearch(self.catalog)

    async def names(self, query: str) -> list[str]:
        found = self.search.search(query, meaning=await self.meanings.of(query))
        return [hit.tool.name for hit in found.hits]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage(
        tool("a/clinic", "operates on people"),
        tool("b/garden", "waters plants"),
        *(tool(f"c/n{number}", f"counts sheep {number}") for number in range(8)),
    )
    yield stage
    stage.embedder.gate.set()
    await stage.meanings.close()


async def test_a_tool_is_found_by_meaning_where_words_fail(stage: Stage) -> None:
    assert await stage.names("surgeon") == []
    await stage.meanings.start()
    await stage.meanings.complete()
    found = stage.search.search("surgeon", meaning=await stage.meanings.of("surgeon"))
    assert found.hits[0].tool.name == "a/clinic"
    assert [(reason.part, reason.place) for reason in found.hits[0].reasons] == [("meaning", 1)]
    assert (found.ranked_by, found.note) == (("words", "meaning"), "")


async def test_a_search_before_the_vectors_are_there_goes_by_words_and_says_so(stage: Stage) -> None:
    found = stage.search.search("plants", meaning=await stage.meanings.of("plants"))
    assert [hit.tool.name for hit in found.hits] == ["b/garden"]
    assert (found.ranked_by, found.note) == (("words",), "10 of 10 tools are not embedded yet")


async def test_meaning_shows_nothing_that_the_viewer_may_not_see(stage: Stage) -> None:
    await stage.meanings.start()
    await stage.meanings.complete()
    meaning = await stage.meanings.of("surgeon")
    for viewer in (None, "someone"):
        found = stage.search.search(
            "surgeon", meaning=meaning, allowed=lambda spec: spec.name != "a/clinic", viewer=viewer
        )
        assert "a/clinic" not in [hit.tool.name for hit in found.hits]


async def test_vectors_are_made_in_batches_and_only_for_what_changed(stage: Stage) -> None:
    await stage.meanings.start()
    await stage.meanings.complete()
    assert stage.embedder.batches == [4, 4, 2]
    stage.catalog.register(tool("d/new", "operates machines"))
    await stage.meanings.complete()
    assert stage.embedder.batches == [4, 4, 2, 1]
    assert "d/new" in await stage.names("surgeon")
    stage.catalog.unregister("a/clinic")
    assert "a/clinic" not in await stage.names("surgeon")


async def test_a_query_is_embedded_once(stage: Stage) -> None:
    await stage.meanings.start()
    await stage.meanings.complete()
    asked = len(stage.embedder.batches)
    for _ in range(3):
        await stage.names("surgeon")
    assert len(stage.embedder.batches) == asked + 1


async def test_an_embedder_is_not_shown_the_secrets_of_a_query(stage: Stage) -> None:
    seen: list[str] = []

    class Listening(HashedWords):
        async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
            seen.extend(texts)
            return await super().embed(texts)

    stage.meanings = ToolMeanings(
        stage.catalog, Listening(), notify=stage.told.append, redact=Redactor(["hunter2-known"]).text
    )
    await stage.meanings.start()
    await stage.meanings.complete()
    await stage.meanings.of("log in with hunter2-known and password=abc")
    assert seen[-1] == "log in with *** and password=***"
    assert "hunter2" not in str(seen)


async def test_an_embedder_that_takes_too_long_is_not_waited_for(stage: Stage) -> None:
    await stage.meanings.start()
    await stage.meanings.complete()
    stage.embedder.gate.clear()
    meaning = await stage.meanings.of("plants")
    assert meaning.note == "hashed-words took longer than 50 ms"
    assert [hit.tool.name for hit in stage.search.search("plants", meaning=meaning).hits] == ["b/garden"]


@pytest.mark.parametrize("fault", ["raises", "answers rubbish"])
async def test_an_embedder_that_fails_is_reported_once_and_asked_again(stage: Stage, fault: str) -> None:
    stage.embedder.is_broken = fault == "answers rubbish"
    stage.embedder.failure = RuntimeError("out of memory") if fault == "raises" else None
    await stage.meanings.start()
    await stage.embedder.asked_often.wait()
    assert len(stage.told) == 1
    assert await stage.names("plants") == ["b/garden"]
    stage.embedder.is_broken, stage.embedder.failure = False, None
    await stage.meanings.complete()
    assert (await stage.names("surgeon"))[0] == "a/clinic"


async def test_a_failure_with_a_query_leaves_words(stage: Stage) -> None:
    await stage.meanings.start()
    await stage.meanings.complete()
    stage.embedder.failure = RuntimeError("gone")
    meaning = await stage.meanings.of("plants")
    assert meaning.note == "hashed-words failed"
    assert len(stage.told) == 1
