"""What a run has left behind: fetched, judged by its bytes, kept as artifacts, before anybody calls it a success.

Each file goes from the server into the store of artifacts as it comes: bounded, sniffed, hashed and, where it is a
picture and the operator has not said otherwise, without the graph that ComfyUI writes into it. A broken connection
begins the file anew. An output that is not as the sidecar declares fails the job: a fully cached run names files that
somebody may have deleted since, and still says success.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply
from toolhub_service.adapters.comfyui.files import ServedFile, served_file
from toolhub_service.adapters.comfyui.metadata_sieves import SIEVES
from toolhub_service.adapters.comfyui.sieve import Damaged, Sieve, sieved
from toolhub_service.adapters.comfyui.sniffing import SNIFFED_BYTES, accepted_as, extension_of, sniffed
from toolhub_service.adapters.comfyui.template import OutputTerms, OutputType, Template
from toolhub_service.adapters.remote_polling import Answer, Poller, Unreachable
from toolhub_service.domain.artifact import Artifact, ArtifactRef
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.guards.redaction import Redact

_ETAG_MAX_CHARS: Final = 100
_GONE: Final = frozenset({400, 403, 404, 410})


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file, for evidence."""

    output: OutputTerms
    served: ServedFile
    ref: ArtifactRef
    etag: str
    served_bytes: int
    served_sha256: str
    """Of what the server sent."""
    is_sieved: bool
    """Whether metadata were taken out."""


@dataclass(slots=True)
class Left:
    """All that was kept of one run."""

    value: dict[str, JsonValue] = field(default_factory=dict)
    files: list[FileRecord] = field(default_factory=list)
    bytes: int = 0


class OutputFetcher:
    """Of one server."""

    def __init__(
        self, client: ComfyClient, poller: Poller, desk: ArtifactDesk, redact: Redact, *, strip_metadata: bool
    ) -> None:
        self._client = client
        self._poller = poller
        self._desk = desk
        self._redact = redact
        self._strip = strip_metadata

    async def fetch(self, call: GrantedCall, template: Template, outputs: Mapping[str, Any]) -> Left:
        """Every declared output. Raises ToolFailure when one is not as declared, or cannot be kept."""
        left = Left()
        for output in template.outputs:
            items = _items(call, output, outputs)
            if output.type is OutputType.TEXT:
                left.value[output.name] = [self._text(call, template, output, item, left) for item in items]
            else:
                files = [self._named(call, output, item) for item in items]
                left.value[output.name] = [await self._kept(call, template, output, file, left) for file in files]
        return left

    def _text(self, call: GrantedCall, template: Template, output: OutputTerms, item: Any, left: Left) -> str:
        if not isinstance(item, str):
            raise failures.bad_output(call, output, "OUTPUT_TYPE", "is no text")
        size_bytes = len(item.encode("utf-8", "replace"))
        left.bytes += size_bytes
        self._check_size(call, template, output, size_bytes, left)
        return self._redact(item)

    def _named(self, call: GrantedCall, output: OutputTerms, item: Any) -> ServedFile:
        file = served_file(item)
        if file is None:
            raise failures.bad_output(call, output, "OUTPUT_NAME", "has a name that the hub does not ask for")
        if file.type != output.type.value:
            raise failures.bad_output(
                call, output, "OUTPUT_TYPE", f"lies in the server's folder `{file.type}`, not `{output.type.value}`"
            )
        return file

    async def _kept(
        self, call: GrantedCall, template: Template, output: OutputTerms, file: ServedFile, left: Left
    ) -> JsonValue:
        before = left.bytes

        async def once() -> Answer[FileRecord]:
            left.bytes = before
            try:
                return Answer(await self._once(call, template, output, file, left))
            except NoReply as broken:
                raise Unreachable(broken.retry_after_s) from broken
            except ToolFailure as failure:
                if failure.error.is_retryable:  # the store of artifacts is away
                    raise Unreachable(failure.error.retry_after_s or 0.0) from failure
                raise

        record = await self._poller.answer(once)
        left.files.append(record)
        return {
            "artifact": record.ref.artifact_id,
            "media_type": record.ref.media_type,
            "bytes": record.ref.size_bytes,
            "sha256": record.ref.sha256,
            "filename": file.filename,
        }

    async def _once(
        self, call: GrantedCall, template: Template, output: OutputTerms, file: ServedFile, left: Left
    ) -> FileRecord:
        async with self._client.stream("/view", file.params) as response:
            status = response.status_code
            if status in _GONE:
                what = f"is not there any more ({status})"
                raise failures.bad_output(call, output, "OUTPUT_MISSING", what, filename=file.filename)
            if status != 200:
                raise NoReply(f"it answered {status}")
            body = _Body(response.aiter_raw(), lambda size: self._check_size(call, template, output, size, left), left)
            beginning = await body.beginning()
            media_type = accepted_as(beginning, output.mime)
            if not media_type:
                what = f"is {sniffed(beginning) or 'of no known kind'}, which the sidecar does not take"
                raise failures.bad_output(call, output, "OUTPUT_TYPE", what, filename=file.filename)
            sieve = SIEVES[media_type]() if self._strip and media_type in SIEVES else None
            name = _artifact_name(output, left, media_type)
            try:
                artifact = await self._keep(body.chunks(), sieve, call, media_type, name)
            except Damaged:
                what = "is a damaged picture"
                raise failures.bad_output(call, output, "OUTPUT_DAMAGED", what, filename=file.filename) from None
            etag = failures.quoted(response.headers.get("etag", ""), self._redact, _ETAG_MAX_CHARS)
            return FileRecord(output, file, artifact.ref, etag, body.size_bytes, body.sha256, sieve is not None)

    async def _keep(
        self, chunks: AsyncGenerator[bytes, None], sieve: Sieve | None, call: GrantedCall, media_type: str, name: str
    ) -> Artifact:
        """Raises Damaged."""
        async with aclosing(chunks), aclosing(sieved(chunks, sieve) if sieve else chunks) as passed:
            return await self._desk.keep(passed, call=call.call, media_type=media_type, name=name)

    def _check_size(
        self, call: GrantedCall, template: Template, output: OutputTerms, size_bytes: int, left: Left
    ) -> None:
        """Raises ToolFailure for a file of that size so far."""
        if size_bytes > output.max_bytes:
            raise failures.bad_output(
                call,
                output,
                "OUTPUT_TOO_LARGE",
                f"is larger than {output.max_bytes:,} bytes",
                max_bytes=output.max_bytes,
            )
        most = template.limits.max_output_bytes
        if left.bytes > most:
            raise failures.bad_output(
                call, output, "OUTPUT_TOO_LARGE", f"brings the whole to more than {most:,} bytes", max_bytes=most
            )


class _Body:
    """A response's body, counted and hashed as it was sent."""

    def __init__(self, raw: AsyncIterator[bytes], check: Any, left: Left) -> None:
        self._raw = raw
        self._check = check
        self._left = left
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
        """All of it, also what `beginning` has read."""
        for held in self._held:
            yield held
        while chunk := await self._next():
            yield chunk

    async def _next(self) -> bytes:
        chunk = await anext(self._raw, b"")
        self.size_bytes += len(chunk)
        self._left.bytes += len(chunk)
        self._hash.update(chunk)
        self._check(self.size_bytes)
        return chunk


def _items(call: GrantedCall, output: OutputTerms, outputs: Mapping[str, Any]) -> list[Any]:
    """Raises ToolFailure when there are too few or too many."""
    node = outputs.get(output.node)
    said = node.get(output.key) if isinstance(node, Mapping) else None
    items = said if isinstance(said, list) else [said] if isinstance(said, str) else []
    if len(items) < output.min_items:
        what = "is not there" if not items else f"has {len(items)} items, fewer than {output.min_items}"
        raise failures.bad_output(call, output, "OUTPUT_MISSING", what)
    if len(items) > output.max_items:
        what = f"has {len(items):,} items; the sidecar takes {output.max_items}"
        raise failures.bad_output(call, output, "OUTPUT_TOO_MANY", what, items=len(items))
    return items


def _artifact_name(output: OutputTerms, left: Left, media_type: str) -> str:
    """The hub's own: `image-2.png`."""
    extension = extension_of(media_type)
    return f"{output.name}-{len(left.files) + 1}{f'.{extension}' if extension else ''}"
