"""Semantic search for tools, when an embedder is configured: the vectors of all tools, updated in the background.

The operator names the embedder; this module only stores its vectors. A tool's vector is stored by the tool's digest,
and computed after changes in bounded batches by one task, never while a search waits. A query is embedded once (its
vector is cached for a while) and within a time limit; when that expires, or too many tools have no vector yet, the
search uses words only and says so. Vectors are normalised, so that a matrix product gives their cosines.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.catalog import CatalogChange, ToolCatalog
from toolhub_service.search.arrays import load, np
from toolhub_service.search.fields import fields_of

if TYPE_CHECKING:
    import numpy.typing as npt

Vector: TypeAlias = "npt.NDArray[np.float32]"
"""A one-dimensional array of length 1."""

BATCH: Final = 32
TEXT_MAX_CHARS: Final = 4_000
QUERIES_REMEMBERED: Final = 256
TIMEOUT_S: Final = 0.2
BATCH_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 30.0
MISSING_SHARE_MAX: Final = 0.1
"""With more tools than that without a vector, meaning is not used: it would favour those that have one."""


class Embedder(Protocol):
    """Turns texts into vectors. May raise anything: the search then uses words only."""

    @property
    def name(self) -> str:
        """The name with the version of the model, for messages."""

    @property
    def dimension(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector for each text, in order; must not block the event loop."""


class Meaning(NamedTuple):
    """The tools near a query in meaning: to be fused with the ranking by words."""

    names: Sequence[str] = ()
    """The tools; empty when meaning is not used."""
    closeness: Vector | None = None
    """The cosine of each, in the order of `names`."""
    version: Hashable = None
    """Differs whenever `names` do."""
    note: str = ""
    """Why meaning is not used, or not for all tools."""


class ToolMeanings:
    """Vectors of a catalog's tools. `notify` is called, once an outage, when the embedder fails."""

    def __init__(
        self,
        catalog: ToolCatalog,
        embedder: Embedder,
        *,
        notify: Callable[[str], None],
        redact: Callable[[str], str] = str,
        timeout_s: float = TIMEOUT_S,
        batch: int = BATCH,
        retry_s: float = RETRY_S,
    ) -> None:
        """`redact` removes secrets from a query: the embedder may be a remote service."""
        self._catalog = catalog
        self._embedder = embedder
        self._notify = notify
        self._redact = redact
        self._timeout_s = timeout_s
        self._batch = batch
        self._retry_s = retry_s
        # By digest.
        self._vectors: dict[str, Vector] = {}
        self._rows: _Rows | None = None
        self._version = 0
        self._queries: OrderedDict[str, Vector] = OrderedDict()
        self._is_failing = False
        self._changed = asyncio.Event()
        self._complete = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def start(self) -> None:
        """Start to embed; returns at once."""
        self._unsubscribe = self._catalog.subscribe(self._follow)
        self._task = asyncio.create_task(self._keep_up(), name="embed tools")

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def complete(self) -> None:
        """Wait until every tool has its vector."""
        while self._missing():
            self._complete.clear()
            await self._complete.wait()

    async def of(self, query: str) -> Meaning:
        """Return the tools near the query; never raises an error of the embedder, and takes no longer than the time
        limit."""
        missing, tools = self._current_rows().missing, len(self._catalog.all())
        note = f"{missing:,} of {tools:,} tools are not embedded yet" if missing else ""
        if not query.strip() or not tools or missing > MISSING_SHARE_MAX * tools:
            return Meaning(note=note)
        # The embedder may be a third party's service, and people put secrets into queries.
        query = self._redact(query)
        vector = self._queries.get(query)
        if vector is None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    (vector,) = await self._embed([query])
            except TimeoutError:
                return Meaning(note=f"{self._embedder.name} took longer than {self._timeout_s * 1000:.0f} ms")
            except Exception as failure:  # noqa: BLE001 - the operator's code; words are enough
                self._note_failure(failure)
                return Meaning(note=f"{self._embedder.name} failed")
            self._remember(query, vector)
        self._queries.move_to_end(query)
        rows = self._current_rows()
        return Meaning(rows.names, rows.matrix() @ vector, rows.made_for, note)

    def _missing(self) -> list[ToolSpec]:
        return [spec for spec in self._catalog.all() if spec.digest not in self._vectors]

    def _follow(self, change: CatalogChange) -> None:
        self._changed.set()

    async def _keep_up(self) -> None:
        while True:
            self._changed.clear()
            wanted = {spec.digest for spec in self._catalog.all()}
            self._vectors = {digest: vector for digest, vector in self._vectors.items() if digest in wanted}
            is_whole = await self._embed_missing()
            if is_whole:
                self._complete.set()
            await self._wait(None if is_whole else self._retry_s)

    async def _embed_missing(self) -> bool:
        """Embed batch after batch; return False when the embedder failed."""
        missing = self._missing()
        for start in range(0, len(missing), self._batch):
            batch = missing[start : start + self._batch]
            try:
                async with asyncio.timeout(BATCH_TIMEOUT_S):
                    vectors = await self._embed([" ".join(fields_of(spec).values())[:TEXT_MAX_CHARS] for spec in batch])
            except Exception as failure:  # noqa: BLE001 - the operator's code; tried again later
                self._note_failure(failure)
                return False
            self._is_failing = False
            self._vectors.update((spec.digest, vector) for spec, vector in zip(batch, vectors, strict=True))
            self._version += 1
        return True

    async def _wait(self, at_most_s: float | None) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()
        except TimeoutError:
            pass  # time to retry

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors.

        Raises ValueError unless the answer is one finite vector of the right dimension for each text.
        """
        await load()
        found = np.asarray(await self._embedder.embed(texts), np.float32)
        if found.shape != (len(texts), self._embedder.dimension) or not np.isfinite(found).all():
            raise ValueError(f"expected {len(texts)} finite vectors of {self._embedder.dimension}, got {found.shape}")
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        # Of length 1, so that the product of two vectors is their cosine.
        return list(found / np.where(lengths > 0, lengths, 1))

    def _note_failure(self, failure: Exception) -> None:
        # Reported once per outage: otherwise every search would log a line.
        if not self._is_failing:
            self._notify(f"{self._embedder.name} cannot embed, search goes by words: {type(failure).__name__}")
        self._is_failing = True

    def _remember(self, query: str, vector: Vector) -> None:
        self._queries[query] = vector
        if len(self._queries) > QUERIES_REMEMBERED:
            self._queries.popitem(last=False)

    def _current_rows(self) -> _Rows:
        made_for = (self._catalog.revision, self._version)
        if self._rows is None or self._rows.made_for != made_for:
            self._rows = _Rows(made_for, self._catalog.all(), self._vectors)
        return self._rows


class _Rows:
    """The tools that have a vector now, and the matrix of their vectors, made when it is first used."""

    def __init__(self, made_for: tuple[str, int], tools: Sequence[ToolSpec], vectors: Mapping[str, Vector]) -> None:
        self.made_for = made_for
        known = [(spec.name, vectors[spec.digest]) for spec in tools if spec.digest in vectors]
        self.names = tuple(name for name, _ in known)
        self.missing = len(tools) - len(known)
        self._vectors = [vector for _, vector in known]
        self._matrix: npt.NDArray[np.float32] | None = None

    def matrix(self) -> npt.NDArray[np.float32]:
        """Return one row for each name; there must be at least one."""
        if self._matrix is None:
            self._matrix = np.stack(self._vectors)
        return self._matrix
