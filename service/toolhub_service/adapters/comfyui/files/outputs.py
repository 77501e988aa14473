"""The outputs of a run: fetched, identified by their bytes, and stored as artifacts before the run counts as a success.

Each file is streamed from the server into the artifact store: bounded, sniffed, hashed and, for pictures unless the
operator configures otherwise, without the graph that ComfyUI writes into them. After a broken connection the file is
fetched again from its beginning. An output that differs from the sidecar's declaration fails the job: a fully cached
run names files that may have been deleted since, and still reports success.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.backends import Backend
from toolhub_service.adapters.comfyui.client import NoReply
from toolhub_service.adapters.comfyui.files.media_types import (
    SNIFFED_BYTES,
    choose_media_type,
    extension_of,
    media_type_of,
)
from toolhub_service.adapters.comfyui.files.metadata import METADATA_FILTERS, DamagedImage, filter_chunks
from toolhub_service.adapters.comfyui.files.served_file import ServedFile, served_file
from toolhub_service.adapters.comfyui.workflow.template import Output, OutputType, Template
from toolhub_service.adapters.remote_polling import Answer, Unreachable
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.secrets import Redact

_ETAG_MAX_CHARS: Final = 100
_GONE: Final = frozenset({400, 403, 404, 410})


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file, for evidence."""

    output: Output
    served: ServedFile
    ref: ArtifactRef
    etag: str
    served_bytes: int
    served_sha256: str
    """Digest of what the server sent."""
    is_stripped: bool
    """Whether metadata was removed."""

    def evidence(self) -> Evidence:
        """Return what was stored of the file, and what the server sent."""
        attributes = {
            "output": self.output.name,
            "node": self.output.node,
            "key": self.output.key,
            "filename": self.served.filename,
            "subfolder": self.served.subfolder,
            "type": self.served.type,
            "bytes": str(self.ref.size_bytes),
            "media_type": self.ref.media_type,
            "etag": self.etag,
            "served_bytes": str(self.served_bytes),
            "served_sha256": self.served_sha256,
            "metadata": "taken out" if self.is_stripped else "as the server wrote them",
        }
        summary = f"{self.output.name}: {self.ref.media_type}, {self.ref.size_bytes:,} bytes"
        return Evidence(EvidenceType.FILE, self.ref.artifact_id, summary, sha256=self.ref.sha256, attributes=attributes)


class OutputFetch:
    """The outputs of one run, fetched from its server and stored as artifacts."""

    def __init__(
        self,
        backend: Backend,
        artifacts: ArtifactService,
        redact: Redact,
        call: GrantedCall,
        template: Template,
        *,
        strip_metadata: bool,
        cached: Sequence[str] = (),
    ) -> None:
        """`cached`: the nodes whose results were in the server's cache."""
        self._cached = frozenset(cached)
        self._backend = backend
        self._artifacts = artifacts
        self._redact = redact
        self._call = call
        self._template = template
        self._strip = strip_metadata
        self._bytes = 0
        """Bytes of all outputs so far."""
        self.value: dict[str, JsonValue] = {}
        self.files: list[FileRecord] = []

    async def run(self, outputs: Mapping[str, Any]) -> None:
        """Fetch every declared output. Raises ToolFailure when one differs from its declaration or cannot be stored;
        then, as after a cancellation, none is stored."""
        try:
            for output in self._template.outputs:
                items = self._items(output, outputs)
                if output.type is OutputType.TEXT:
                    self.value[output.name] = [self._text(output, item) for item in items]
                else:
                    files = [self._file_of_item(output, item) for item in items]
                    self.value[output.name] = [await self._store_file(output, file) for file in files]
        except BaseException:
            await self._artifacts.release([record.ref.artifact_id for record in self.files])
            raise

    def _items(self, output: Output, outputs: Mapping[str, Any]) -> list[Any]:
        """Return the output's items. Raises ToolFailure when there are too few or too many."""
        node = outputs.get(output.node)
        value = node.get(output.key) if isinstance(node, Mapping) else None
        items = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        if len(items) < output.min_items and not items:
            raise failures.no_such_output(self._call, output, node, self._redact)
        if len(items) < output.min_items:
            what = f"has {len(items)} items, fewer than {output.min_items}"
            raise failures.bad_output(self._call, output, "OUTPUT_MISSING", what)
        if len(items) > output.max_items:
            what = f"has {len(items):,} items; the sidecar takes {output.max_items}"
            raise failures.bad_output(self._call, output, "OUTPUT_TOO_MANY", what, items=len(items))
        return items

    def _text(self, output: Output, item: Any) -> str:
        if not isinstance(item, str):
            raise failures.bad_output(self._call, output, "OUTPUT_TYPE", "is no text")
        size_bytes = len(item.encode("utf-8", "replace"))
        self._count(output, size_bytes, size_bytes)
        return self._redact(item)

    def _file_of_item(self, output: Output, item: Any) -> ServedFile:
        file = served_file(item)
        if file is None:
            raise failures.bad_output(self._call, output, "OUTPUT_NAME", "has a name that the hub does not ask for")
        if file.type != output.type.value:
            what = f"lies in the server's folder `{file.type}`, not `{output.type.value}`"
            raise failures.bad_output(self._call, output, "OUTPUT_TYPE", what)
        return file

    async def _store_file(self, output: Output, file: ServedFile) -> JsonValue:
        before = self._bytes

        async def once() -> Answer[FileRecord]:
            self._bytes = before
            try:
                return Answer(await self._once(output, file))
            except NoReply as broken:
                raise Unreachable(broken.retry_after_s) from broken
            except ToolFailure as failure:
                if failure.error.is_retryable:  # the artifact store is unavailable
                    raise Unreachable(failure.error.retry_after_s or 0.0) from failure
                raise

        record = await self._backend.fetches.answer(once)
        self.files.append(record)
        return {
            "artifact": record.ref.artifact_id,
            "media_type": record.ref.media_type,
            "bytes": record.ref.size_bytes,
            "sha256": record.ref.sha256,
            "filename": file.filename,
        }

    async def _once(self, output: Output, file: ServedFile) -> FileRecord:
        async with self._backend.client.stream("/view", file.params) as response:
            status = response.status_code
            # A fully cached run names the files of an earlier run, which may have been deleted since, and still reports
            # success.
            if status in _GONE:
                advice = {"advice": failures.GONE_FROM_CACHE} if output.node in self._cached else {}
                what = f"is not there any more ({status})"
                raise self._bad_file(output, file, "OUTPUT_MISSING", what, **advice)
            if status != 200:
                raise NoReply(f"it answered {status}")
            body = _Body(response.aiter_raw(), partial(self._count, output))
            beginning = await body.beginning()
            media_type = choose_media_type(beginning, output.mime)
            if not media_type:
                what = f"is {media_type_of(beginning) or 'of no known kind'}, which the sidecar does not take"
                raise self._bad_file(output, file, "OUTPUT_TYPE", what)
            filter_ = METADATA_FILTERS[media_type]() if self._strip and media_type in METADATA_FILTERS else None
            # The hub chooses the artifact's name, such as `image-2.png`.
            extension = extension_of(media_type)
            name = f"{output.name}-{len(self.files) + 1}{f'.{extension}' if extension else ''}"
            chunks = body.chunks()
            kept = filter_chunks(chunks, filter_) if filter_ else chunks
            try:
                async with aclosing(chunks), aclosing(kept):
                    artifact = await self._artifacts.keep(kept, call=self._call.call, media_type=media_type, name=name)
            except DamagedImage:
                raise self._bad_file(output, file, "OUTPUT_DAMAGED", "is a damaged picture") from None
            etag = failures.quote_foreign(response.headers.get("etag", ""), self._redact, _ETAG_MAX_CHARS)
            return FileRecord(
                output=output,
                served=file,
                ref=artifact.ref,
                etag=etag,
                served_bytes=body.size_bytes,
                served_sha256=body.sha256,
                is_stripped=filter_ is not None,
            )

    def _bad_file(self, output: Output, file: ServedFile, cause: str, what: str, **advice: str) -> ToolFailure:
        return failures.bad_output(self._call, output, cause, what, filename=file.filename, **advice)

    def _count(self, output: Output, added: int, size_bytes: int) -> None:
        """Count so many more bytes of a file or text of that size so far. Raises ToolFailure when it is too large."""
        self._bytes += added
        most, whole = output.max_bytes, self._template.limits.max_output_bytes
        if size_bytes > most:
            what = f"is larger than {most:,} bytes"
            raise failures.bad_output(self._call, output, "OUTPUT_TOO_LARGE", what, max_bytes=most)
        if self._bytes > whole:
            what = f"brings the whole to more than {whole:,} bytes"
            raise failures.bad_output(self._call, output, "OUTPUT_TOO_LARGE", what, max_bytes=whole)


class _Body:
    """A response's body, counted and hashed as it arrives."""

    def __init__(self, raw: AsyncIterator[bytes], count: Callable[[int, int], None]) -> None:
        """`count` receives the size of each chunk and of all so far; an exception of it ends the reading."""
        self._raw = raw
        self._count = count
        self._held: list[bytes] = []
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def beginning(self) -> bytes:
        while sum(map(len, self._held)) < SNIFFED_BYTES:
            chunk = await self._next()
            if not chunk:
                break
            self._held.append(chunk)
        return b"".join(self._held)[:SNIFFED_BYTES]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the whole body, including what `beginning` has read."""
        for held in self._held:
            yield held
        while chunk := await self._next():
            yield chunk

    async def _next(self) -> bytes:
        chunk = await anext(self._raw, b"")
        self.size_bytes += len(chunk)
        self._hash.update(chunk)
        self._count(len(chunk), self.size_bytes)
        return chunk
