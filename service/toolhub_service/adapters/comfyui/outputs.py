"""The outputs of a run: fetched, checked by their bytes, and kept as artifacts before the run counts as a success.

Each file goes from the server into the store of artifacts as it comes: bounded, sniffed, hashed and, where it is a
picture and the operator has not said otherwise, without the graph that ComfyUI writes into it. A broken connection
begins the file anew. An output that is not as the sidecar declares fails the job: a fully cached run names files that
somebody may have deleted since, and still says success.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from toolhub_service.adapters.comfyui import failures
from toolhub_service.adapters.comfyui.client import ComfyClient, NoReply
from toolhub_service.adapters.comfyui.metadata import METADATA_FILTERS, DamagedImage, filtered
from toolhub_service.adapters.comfyui.template import OutputTerms, OutputType, Template
from toolhub_service.adapters.remote_polling import Answer, Poller, Unreachable
from toolhub_service.domain.artifact import ArtifactDesk, ArtifactRef
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.guards.descriptions import is_hidden
from toolhub_service.guards.secrets import Redact

# What bytes are, by how they begin (WHATWG MIME Sniffing, and the signatures of what ComfyUI writes besides).
#
# What a server calls its files is not believed: a page of HTML under an image's name is the oldest of such tricks.

SNIFFED_BYTES: Final = 512
_BEGINNINGS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"glTF", "model/gltf-binary"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"MZ", "application/x-msdownload"),
    (b"\x7fELF", "application/x-executable"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_BRANDS: Final = {b"avif": "image/avif", b"avis": "image/avif", b"heic": "image/heic", b"M4A ": "audio/mp4"}
_HTML: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script", b"<iframe", b"<svg", b"<?xml", b"<!--")
HTML: Final = "text/html"
_EXTENSIONS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/avif": "avif",
    "video/webm": "webm",
    "video/mp4": "mp4",
    "audio/flac": "flac",
    "audio/ogg": "ogg",
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "audio/wav": "wav",
    "model/gltf-binary": "glb",
}


def media_type_of(beginning: bytes) -> str:
    """The media type that the first `SNIFFED_BYTES` bytes show; empty when they show none."""
    for signature, media_type in _BEGINNINGS:
        if beginning.startswith(signature):
            return media_type
    if beginning[:4] == b"RIFF":
        return _RIFF.get(beginning[8:12], "")
    if beginning[4:8] == b"ftyp":
        return _BRANDS.get(beginning[8:12], "video/mp4")
    return HTML if beginning.lstrip(b"\xef\xbb\xbf \t\r\n\f").lower().startswith(_HTML) else ""


def accepted_as(beginning: bytes, wanted: Sequence[str]) -> str:
    """The media type that these bytes may be kept as; empty when they are none of `wanted` (any, when it is empty).

    Types that no signature shows, such as text, are taken at the operator's word.
    """
    found = media_type_of(beginning)
    if found == HTML:
        return ""
    if found:
        return found if not wanted or any(fnmatchcase(found, each) for each in wanted) else ""
    if not wanted:
        return "application/octet-stream"
    return next((each for each in wanted if not _is_shown(each)), "")


def extension_of(media_type: str) -> str:
    """The file extension of a media type; empty for one that no node loads."""
    return _EXTENSIONS.get(media_type, "")


def _is_shown(media_type: str) -> bool:
    """Whether bytes of that type would have shown it."""
    known = {shown for _, shown in _BEGINNINGS} | {*_RIFF.values(), *_BRANDS.values(), "video/mp4"}
    return "*" in media_type or media_type in known


# Files as a server names them, judged before anything is asked for: no name of a stranger ever becomes a path.

NAME_MAX_CHARS: Final = 255
_FOLDER_MAX_CHARS: Final = 1_024


@dataclass(frozen=True, slots=True)
class ServedFile:
    """One file of an output."""

    filename: str
    """Without folders."""
    subfolder: str
    type: str

    @property
    def params(self) -> dict[str, str]:
        """Of GET /view."""
        return {"filename": self.filename, "subfolder": self.subfolder, "type": self.type}


def served_file(said: Any) -> ServedFile | None:
    """None when it is none, or bears a name that no honest server gives."""
    if not isinstance(said, Mapping):
        return None
    filename, subfolder, kind = said.get("filename"), said.get("subfolder", ""), said.get("type", "output")
    if not isinstance(filename, str) or not isinstance(subfolder, str) or not isinstance(kind, str):
        return None
    if not is_file_name(filename) or not is_folder(subfolder) or kind not in ("output", "temp", "input"):
        return None
    return ServedFile(filename, subfolder, kind)


def is_file_name(name: str) -> bool:
    return 0 < len(name) <= NAME_MAX_CHARS and _is_plain(name) and "/" not in name and "\\" not in name


def is_folder(name: str) -> bool:
    """Relative and going nowhere but down; servers on Windows write backslashes. Empty: the top."""
    if not name:
        return True
    return len(name) <= _FOLDER_MAX_CHARS and all(map(_is_plain, name.replace("\\", "/").split("/")))


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and ":" not in name and not any(map(is_hidden, name)) and "\n" not in name


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
    is_stripped: bool
    """Whether metadata were taken out."""

    def evidence(self) -> Evidence:
        """What was kept of the file, and what the server sent."""
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


@dataclass(slots=True)
class FetchedOutputs:
    """The outputs of one run as far as they were fetched."""

    value: dict[str, JsonValue] = field(default_factory=dict)
    files: list[FileRecord] = field(default_factory=list)
    bytes: int = 0


class OutputFetcher:
    """Fetches the outputs of runs from one server, and keeps them as artifacts."""

    def __init__(
        self, client: ComfyClient, poller: Poller, desk: ArtifactDesk, redact: Redact, *, strip_metadata: bool
    ) -> None:
        self._client = client
        self._poller = poller
        self._desk = desk
        self._redact = redact
        self._strip = strip_metadata

    async def fetch(self, call: GrantedCall, template: Template, outputs: Mapping[str, Any]) -> FetchedOutputs:
        """Every declared output. Raises ToolFailure when one is not as declared, or cannot be kept."""
        left = FetchedOutputs()
        for output in template.outputs:
            items = _items(call, output, outputs)
            if output.type is OutputType.TEXT:
                left.value[output.name] = [self._text(call, template, output, item, left) for item in items]
            else:
                files = [self._named(call, output, item) for item in items]
                left.value[output.name] = [await self._kept(call, template, output, file, left) for file in files]
        return left

    def _text(self, call: GrantedCall, template: Template, output: OutputTerms, item: Any, left: FetchedOutputs) -> str:
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
        self, call: GrantedCall, template: Template, output: OutputTerms, file: ServedFile, left: FetchedOutputs
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
        self, call: GrantedCall, template: Template, output: OutputTerms, file: ServedFile, left: FetchedOutputs
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
                what = f"is {media_type_of(beginning) or 'of no known kind'}, which the sidecar does not take"
                raise failures.bad_output(call, output, "OUTPUT_TYPE", what, filename=file.filename)
            filter_ = METADATA_FILTERS[media_type]() if self._strip and media_type in METADATA_FILTERS else None
            name = _artifact_name(output, left, media_type)
            chunks = body.chunks()
            kept = filtered(chunks, filter_) if filter_ else chunks
            try:
                async with aclosing(chunks), aclosing(kept):
                    artifact = await self._desk.keep(kept, call=call.call, media_type=media_type, name=name)
            except DamagedImage:
                what = "is a damaged picture"
                raise failures.bad_output(call, output, "OUTPUT_DAMAGED", what, filename=file.filename) from None
            etag = failures.quoted(response.headers.get("etag", ""), self._redact, _ETAG_MAX_CHARS)
            return FileRecord(output, file, artifact.ref, etag, body.size_bytes, body.sha256, filter_ is not None)

    def _check_size(
        self, call: GrantedCall, template: Template, output: OutputTerms, size_bytes: int, left: FetchedOutputs
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

    def __init__(self, raw: AsyncIterator[bytes], check: Any, left: FetchedOutputs) -> None:
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


def _artifact_name(output: OutputTerms, left: FetchedOutputs, media_type: str) -> str:
    """The hub's own: `image-2.png`."""
    extension = extension_of(media_type)
    return f"{output.name}-{len(left.files) + 1}{f'.{extension}' if extension else ''}"
