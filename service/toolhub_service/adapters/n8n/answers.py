"""What a webhook answered with success: read by its content, since n8n sends JSON as text/html, too.

JSON                 the value
other text           {"text": "…"}
anything else        {"artifact": "<id>", "bytes": n, "sha256": "…"}: kept as an artifact
nothing              None
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.client import LARGE_BYTES, Reply, quoted
from toolhub_service.adapters.n8n.failures import as_text
from toolhub_service.adapters.n8n.kind import BusinessError, N8nWorkflow
from toolhub_service.adapters.n8n.workflow import id_of
from toolhub_service.adapters.upstream import as_object, kept_bytes
from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.result import Evidence, EvidenceType
from toolhub_service.egress.wire import MOST
from toolhub_service.guards.secrets import Redact
from toolhub_service.schema.references import names_of
from toolhub_service.schema.repaired_json import loads_repaired
from toolhub_service.schema.strict_json import bound_structure

EXECUTION_HEADER: Final = "x-execution-id"
STARTED: Final[JsonObject] = {"message": "Workflow was started"}
"""n8n's immediate answer for a workflow whose result is not awaited."""
_DEPTH_MAX: Final = 64
_JSON_BEGINS: Final = frozenset(b'{["-0123456789tfn')
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


class Unreadable(Exception):
    """It begins like JSON and cannot be parsed or used. `why` is a clause."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Read(NamedTuple):
    value: JsonValue
    binary: bytes | None = None
    """A body that is neither JSON nor text."""
    repairs: tuple[str, ...] = ()
    """What was repaired in its JSON."""


def read(answer: Reply) -> Read:
    """Parse the body. Raises Unreadable."""
    body = answer.body.strip()
    if not body:
        return Read(None)
    # By its content: with `responseData`, a webhook that answers at once sends JSON as text/html.
    if body[0] in _JSON_BEGINS:
        try:
            value, repairs = loads_repaired(body, max_bytes=len(body), max_depth=_DEPTH_MAX)
            return Read(value, repairs=repairs)
        except ToolFailure as failure:
            if body[:1] in (b"{", b"[") or "json" in answer.headers.get("content-type", ""):
                # "true story" is a text; what begins like an object or a list and does not parse is broken.
                is_too_deep = failure.error.details.get("reason") == "too_deep"
                why = "it is nested too deeply" if is_too_deep else "it is not valid JSON"
                raise Unreadable(why) from failure
    try:
        return Read({"text": answer.body.decode()})
    except UnicodeDecodeError:
        return Read(None, answer.body)


async def read_in_thread(answer: Reply) -> Read:
    """Do the same, in a thread for a large body."""
    return read(answer) if len(answer.body) <= LARGE_BYTES else await in_thread(_read_bounded, answer)


def _read_bounded(answer: Reply) -> Read:
    """Do the same as `read`, but refuse a body whose structure would block other calls."""
    if answer.body.lstrip()[:1] in (b"{", b"["):
        try:
            bound_structure(answer.body, MOST)
        except ToolFailure as failure:
            raise Unreadable("its JSON has too many values") from failure
    return read(answer)


def execution_named(answer: Reply, value: JsonValue, pointer: str) -> str:
    """Return the id of the execution that the answer names; empty when it names none, or not as an id."""
    found = at(value, pointer)
    return (id_of(found) if found is not None else "") or id_of(answer.headers.get(EXECUTION_HEADER, "").strip())


def at(value: JsonValue, pointer: str) -> JsonValue:
    """Return the value at a JSON Pointer; None when there is none."""
    for name in names_of(pointer) if pointer else ():
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def plain_media_type(value: str) -> str:
    """Return the media type without its parameters."""
    return value.partition(";")[0].strip()


def failure_in(entry: N8nWorkflow, value: JsonValue) -> str | None:
    """Return the workflow's message about its failure, which may be empty; None: it has not failed."""
    sign = next((sign for sign in entry.fails_when if _matches(sign, value)), None)
    if sign is None:
        return None
    message = at(value, sign.message) if sign.message else None
    return "" if message is None else as_text(message)


def _matches(sign: BusinessError, value: JsonValue) -> bool:
    found = at(value, sign.at)
    if sign.equals is None:
        return found is not None and found is not False and found not in ("", [], {})
    # In Python 1 equals True, in JSON it does not.
    return isinstance(found, bool) == isinstance(sign.equals, bool) and found == sign.equals


# An item of a result has files under `binary`, by property: `{mimeType, fileName, fileSize, data, id}`. In the mode
# `default` (in memory), and from Code nodes that write it so, `data` is base64: the file becomes an artifact. Otherwise
# (`filesystem`, the default of 2.x, `s3`, `database`) `data` only names the mode, and `id` the file, which n8n gives to
# logged-in users but through no route of its public API (OpenAPI of 2.8.4). Such a file is reported as missing.

FILES_MAX: Final = 32
"""Per result; further files are only counted."""
_WORD_MAX_CHARS: Final = 120
_NAMED_MAX: Final = 5
_ELSEWHERE: Final = "it stays in n8n, whose API does not return files"
_UNREADABLE: Final = "n8n's description of it is not a file"


class ItemFile(NamedTuple):
    """One file of one item, as n8n describes it."""

    item: int
    """Index from 0."""
    name: str
    """The property."""
    fields: JsonObject


@dataclass(slots=True)
class Files:
    """All files of a result: those stored, and why others were not."""

    by_item: dict[int, dict[str, JsonValue]] = field(default_factory=dict)
    artifacts: tuple[ArtifactRef, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Descriptions of the files that were not stored."""

    def merged(self, value: JsonValue) -> JsonValue:
        """Return the result; an item that consists of files only is replaced by these files."""
        if isinstance(value, list):
            return [self._of(at, item) for at, item in enumerate(value)]
        return self._of(0, value)

    def _of(self, item: int, value: JsonValue) -> JsonValue:
        # An item with values of its own keeps them; its files are named in the evidence.
        return self.by_item.get(item, value) if value is None or value == {} else value


def files_in(items: Sequence[JsonObject]) -> list[ItemFile]:
    return [
        ItemFile(at, name, file)
        for at, item in enumerate(items)
        for name, described in (as_object(item.get("binary")) or {}).items()
        if (file := as_object(described)) is not None
    ]


async def keep_files(
    found: Sequence[ItemFile], call: Call, artifacts: ArtifactService | None, redact: Redact, execution_id: str
) -> Files:
    """Store each file, or note why it is not stored."""
    files = Files()
    for file in found[:FILES_MAX]:
        about = {name: quoted(_text(file.fields, key), redact, _WORD_MAX_CHARS) for name, key in _WORDS.items()}
        described: JsonObject = {name: words for name, words in about.items() if words}
        shown = f"`{quoted(file.name, redact, _WORD_MAX_CHARS)}` of item {file.item + 1}"
        data = await _data(file.fields)
        if isinstance(data, str):
            value: JsonObject = {**described, "dropped": data}
        else:
            media_type = plain_media_type(_text(file.fields, "mimeType"))
            value, refs = await kept_bytes(data, call, artifacts, media_type=media_type)
            value = {**described, **value}
            files.artifacts += refs
            for ref in refs:
                summary = f"file {shown}: {ref.media_type}, {ref.size_bytes:,} bytes"
                files.evidence.append(
                    Evidence(EvidenceType.FILE, ref.artifact_id, summary, sha256=ref.sha256, attributes=about)
                )
        if "artifact" not in value:
            files.missing.append(f"{shown} ({', '.join(about[name] for name in _SHOWN if about[name]) or 'a file'})")
        files.by_item.setdefault(file.item, {})[file.name] = value
    if len(found) > FILES_MAX:
        files.missing.append(f"{len(found) - FILES_MAX} more")
    if files.missing:
        files.evidence.append(_missing_evidence(files.missing, execution_id))
    return files


_WORDS: Final = {"filename": "fileName", "media_type": "mimeType", "size": "fileSize"}
_SHOWN: Final = ("filename", "media_type", "size")


async def _data(fields: JsonObject) -> bytes | str:
    """Return the file's bytes, or a clause that says why there are none."""
    text = fields.get("data")
    # With an id, `data` names n8n's store and is no content.
    if not isinstance(text, str) or fields.get("id"):
        return _ELSEWHERE
    return _decoded(text) if len(text) <= LARGE_BYTES else await asyncio.to_thread(_decoded, text)


def _decoded(text: str) -> bytes | str:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return _UNREADABLE


def _text(fields: JsonObject, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _missing_evidence(missing: Sequence[str], execution_id: str) -> Evidence:
    named = "; ".join(missing[:_NAMED_MAX]) + (f"; {len(missing) - _NAMED_MAX} more" if missing[_NAMED_MAX:] else "")
    summary = f"files that are not in the result: {named}. See execution {execution_id} in n8n"
    return Evidence(EvidenceType.TOOL, execution_id, summary, attributes={"missing_files": str(len(missing))})
