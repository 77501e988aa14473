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
from toolhub_service.search.embedding import ToolMeanings
from toolhub_service.search.search import ToolSearch


class FakeEmbedder:
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


class EmbeddingHarness:
    def __init__(self, *specs: ToolSpec) -> None:
        self.catalog = ToolCatalog(check_schema=lambda schema: None)
        self.catalog.register_all(specs)
        self.embedder = FakeEmbedder()
        self.notified: list[str] = []
        self.meanings = ToolMeanings(
            self.catalog, self.embedder, notify=self.notified.append, timeout_s=0.05, batch=4, retry_s=0.001
        )
        self.search = ToolSearch(self.catalog)

    async def names(self, query: str) -> list[str]:
        found = self.search.search(query, meaning=await self.meanings.of(query))
        return [hit.tool.name for hit in found.hits]


@pytest.fixture
async def harness() -> AsyncIterator[EmbeddingHarness]:
    harness = EmbeddingHarness(
        tool("a/clinic", "operates on people"),
        tool("b/garden", "waters plants"),
        *(tool(f"c/n{number}", f"counts sheep {number}") for number in range(8)),
    )
    yield harness
    harness.embedder.gate.set()
    await harness.meanings.close()


async def test_a_tool_is_found_by_meaning_where_words_fail(harness: EmbeddingHarness) -> None:
    assert await harness.names("surgeon") == []
    await harness.meanings.start()
    await harness.meanings.complete()
    found = harness.search.search("surgeon", meaning=await harness.meanings.of("surgeon"))
    assert found.hits[0].tool.name == "a/clinic"
    assert [(reason.part, reason.place) for reason in found.hits[0].reasons] == [("meaning", 1)]
    assert (found.ranked_by, found.note) == (("words", "meaning"), "")


async def test_a_search_before_vectors_are_ready_uses_words_and_is_marked(harness: EmbeddingHarness) -> None:
    found = harness.search.search("plants", meaning=await harness.meanings.of("plants"))
    assert [hit.tool.name for hit in found.hits] == ["b/garden"]
    assert (found.ranked_by, found.note) == (("words",), "10 of 10 tools are not embedded yet")


async def test_meaning_shows_nothing_that_the_viewer_may_not_see(harness: EmbeddingHarness) -> None:
    await harness.meanings.start()
    await harness.meanings.complete()
    meaning = await harness.meanings.of("surgeon")
    for viewer in (None, "someone"):
        found = harness.search.search(
            "surgeon", meaning=meaning, allowed=lambda spec: spec.name != "a/clinic", viewer=viewer
        )
        assert "a/clinic" not in [hit.tool.name for hit in found.hits]


async def test_vectors_are_made_in_batches_and_only_for_what_changed(harness: EmbeddingHarness) -> None:
    await harness.meanings.start()
    await harness.meanings.complete()
    assert harness.embedder.batches == [4, 4, 2]
    harness.catalog.register(tool("d/new", "operates machines"))
    await harness.meanings.complete()
    assert harness.embedder.batches == [4, 4, 2, 1]
    assert "d/new" in await harness.names("surgeon")
    harness.catalog.unregister("a/clinic")
    assert "a/clinic" not in await harness.names("surgeon")


async def test_a_query_is_embedded_once(harness: EmbeddingHarness) -> None:
    await harness.meanings.start()
    await harness.meanings.complete()
    asked = len(harness.embedder.batches)
    for _ in range(3):
        await harness.names("surgeon")
    assert len(harness.embedder.batches) == asked + 1


async def test_an_embedder_is_not_shown_the_secrets_of_a_query(harness: EmbeddingHarness) -> None:
    seen: list[str] = []

    class RecordingEmbedder(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
            seen.extend(texts)
            return await super().embed(texts)

    harness.meanings = ToolMeanings(
        harness.catalog, RecordingEmbedder(), notify=harness.notified.append, redact=Redactor(["hunter2-known"]).text
    )
    await harness.meanings.start()
    await harness.meanings.complete()
    await harness.meanings.of("log in with hunter2-known and password=abc")
    assert seen[-1] == "log in with *** and password=***"
    assert "hunter2" not in str(seen)


async def test_an_embedder_that_takes_too_long_is_not_waited_for(harness: EmbeddingHarness) -> None:
    await harness.meanings.start()
    await harness.meanings.complete()
    harness.embedder.gate.clear()
    meaning = await harness.meanings.of("plants")
    assert meaning.note == "hashed-words took longer than 50 ms"
    assert [hit.tool.name for hit in harness.search.search("plants", meaning=meaning).hits] == ["b/garden"]


@pytest.mark.parametrize("fault", ["raises", "answers rubbish"])
async def test_an_embedder_that_fails_is_reported_once_and_asked_again(harness: EmbeddingHarness, fault: str) -> None:
    harness.embedder.is_broken = fault == "answers rubbish"
    harness.embedder.failure = RuntimeError("out of memory") if fault == "raises" else None
    await harness.meanings.start()
    await harness.embedder.asked_often.wait()
    assert len(harness.notified) == 1
    assert await harness.names("plants") == ["b/garden"]
    harness.embedder.is_broken, harness.embedder.failure = False, None
    await harness.meanings.complete()
    assert (await harness.names("surgeon"))[0] == "a/clinic"


async def test_a_failure_with_a_query_leaves_words(harness: EmbeddingHarness) -> None:
    await harness.meanings.start()
    await harness.meanings.complete()
    harness.embedder.failure = RuntimeError("gone")
    meaning = await harness.meanings.of("plants")
    assert meaning.note == "hashed-words failed"
    assert len(harness.notified) == 1
