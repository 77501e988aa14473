"""What a webhook answered with success: read by its content, since n8n sends JSON as text/html, too.

JSON                 the value
other text           {"text": "…"}
anything else        {"artifact": "<id>", "bytes": n, "sha256": "…"}: kept as an artifact
nothing              None
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from toolhub_service.adapters.n8n.client import LARGE_BYTES, Reply
from toolhub_service.adapters.n8n.failures import as_text
from toolhub_service.adapters.n8n.kind import BusinessError, N8nWorkflow
from toolhub_service.adapters.n8n.workflow import id_of
from toolhub_service.aio.cooperative import in_thread
from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.egress.json_bodies import MOST
from toolhub_service.schema.json_structure import bound_structure
from toolhub_service.schema.references import names_of
from toolhub_service.schema.repaired_json import loads_repaired

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


def execution_id_in(answer: Reply, value: JsonValue, pointer: str) -> str:
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
