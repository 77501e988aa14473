"""What a webhook answered with success: read by its content, since n8n sends JSON as text/html too.

JSON                 the value
other text           {"text": "…"}
anything else        {"artifact": "<id>", "bytes": n, "sha256": "…"}: kept as an artifact
nothing              None
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.client import LARGE_BYTES, Reply
from toolhub_service.adapters.n8n.executions import id_of
from toolhub_service.domain.artifact import OCTETS, ArtifactRef
from toolhub_service.domain.artifact_ports import ArtifactDesk
from toolhub_service.domain.call import Call
from toolhub_service.domain.errors import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.registry.turns import in_thread
from toolhub_service.schema.json_pointer import names_of
from toolhub_service.schema.strict_json import loads
from toolhub_service.schema.structure import bound_structure
from toolhub_service.tools.json_bodies import MOST

EXECUTION_HEADER: Final = "x-execution-id"
STARTED: Final[JsonObject] = {"message": "Workflow was started"}
"""How n8n answers at once, of a workflow that nobody waits for."""
_DEPTH_MAX: Final = 64
_JSON_BEGINS: Final = frozenset(b'{["-0123456789tfn')
_CHUNK_BYTES: Final = 256 * 1024
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


class Unreadable(Exception):
    """It begins like JSON and is none that can be used. `why` is a clause."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Read(NamedTuple):
    value: JsonValue
    binary: bytes | None = None
    """What is neither JSON nor text."""

    @property
    def is_json(self) -> bool:
        return self.binary is None


def read(answer: Reply) -> Read:
    """The body. Raises Unreadable."""
    body = answer.body.strip()
    if not body:
        return Read(None)
    if body[0] in _JSON_BEGINS:
        try:
            return Read(loads(body, max_bytes=len(body), max_depth=_DEPTH_MAX))
        except ToolFailure as failure:
            if body[:1] in (b"{", b"[") or "json" in answer.headers.get("content-type", ""):
                why = "it is nested too deeply" if _is_too_deep(failure) else "it is not valid JSON"
                raise Unreadable(why) from failure
    try:
        return Read({"text": answer.body.decode()})
    except UnicodeDecodeError:
        return Read(None, answer.body)


async def read_aside(answer: Reply) -> Read:
    """The same, of a large body in a thread."""
    return read(answer) if len(answer.body) <= LARGE_BYTES else await in_thread(_read_bounded, answer)


def _read_bounded(answer: Reply) -> Read:
    """As `read`; of a body whose structure would hold everybody up, nothing."""
    if answer.body.lstrip()[:1] in (b"{", b"["):
        try:
            bound_structure(answer.body, MOST)
        except ToolFailure as failure:
            raise Unreadable("it is JSON of too many small parts") from failure
    return read(answer)


def execution_named(answer: Reply, value: JsonValue, pointer: str) -> str:
    """The execution that the answer names; empty when it names none, or in a way that no id is written."""
    found = at(value, pointer)
    return (id_of(found) if found is not None else "") or id_of(answer.headers.get(EXECUTION_HEADER, "").strip())


def at(value: JsonValue, pointer: str) -> JsonValue:
    """What a JSON Pointer leads to; None where it leads nowhere."""
    for name in names_of(pointer) if pointer else ():
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


async def kept(
    data: bytes, media_type: str, call: Call, desk: ArtifactDesk | None
) -> tuple[JsonObject, tuple[ArtifactRef, ...]]:
    """Bytes as a value: where they are kept, or why they are not. An effect that was had is answered all the same.

    `media_type`: as somebody else names it; parameters are put aside, and what is none is not believed.
    """
    facts: JsonObject = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if desk is None:
        return {**facts, "dropped": "this hub keeps no artifacts"}, ()
    said = media_type.partition(";")[0].strip()
    try:
        artifact = await desk.keep(_chunks(data), call=call, media_type=said if _MEDIA_TYPE.fullmatch(said) else OCTETS)
    except ToolFailure as failure:
        return {**facts, "dropped": f"it could not be kept: {failure.error.kind.value}"}, ()
    return {**facts, "artifact": artifact.artifact_id}, (artifact.ref,)


def _is_too_deep(failure: ToolFailure) -> bool:
    return failure.error.details.get("reason") == "too_deep"


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]
