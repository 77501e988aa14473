"""Encodes what stores keep as bytes: exact, versioned, strict, and the same for every store.

The format is msgpack of Structs. A domain type that holds JSON values, or is no Struct, is converted by its `Form`; the
others are written as they are. Decoding validates types, so bytes that are no such record are refused as a whole.
Encoding raises ValueError (`NotJson` for values) for values that cannot be encoded: NaN in a JSON value, half a
surrogate pair in a text.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec
import orjson
from msgspec.structs import astuple

from toolhub_service.domain.approval import Approval
from toolhub_service.domain.artifact import Artifact
from toolhub_service.domain.call import BudgetRequest, Call, ExecContext, Principal, Question
from toolhub_service.domain.credential import StoredCredential
from toolhub_service.domain.errors.failure import ToolError, ToolFailure, Violation
from toolhub_service.domain.inner_log import KeptCall
from toolhub_service.domain.job import Job, JobStatus
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.key import KeyRecord
from toolhub_service.domain.memory import MemoryItem
from toolhub_service.domain.pin import Pin
from toolhub_service.domain.result import Evidence, ToolResult
from toolhub_service.domain.tool import ToolUse
from toolhub_service.schema import canonical_json, strict_json

T = TypeVar("T")
R = TypeVar("R")


class UnreadableRecord(ValueError):
    """The bytes are not such a record: damaged, or written by a newer version."""


def readable(rows: Iterable[R], decode: Callable[[R], T]) -> list[T]:
    """Return the records that this version can read.

    A damaged one must not hide the others, nor stop the sweeps over them. A request for one by its name is refused.
    """
    found: list[T] = []
    for row in rows:
        try:
            found.append(decode(row))
        except UnreadableRecord as damaged:
            _warn_once(str(damaged))
    return found


@lru_cache(maxsize=64)
def _warn_once(problem: str) -> None:
    """Once for each kind of damage: lists are read every few seconds."""
    logging.getLogger("toolhub").error("records of a store cannot be read and are skipped: %s", problem)


# JSON values are stored as text that is read back exactly: member order, doubles, every character, and integers of any
# size, which is why values are not msgpack themselves: its integers end at 64 bits.

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_MAX_BYTES: Final = 2**31
_MAX_DEPTH: Final = 254
# msgspec leaves a default out when it is the same object.
_NULL: Final = b"null"
_EMPTY: Final = b"{}"


def encode_json(value: JsonValue) -> bytes:
    """Return JSON text with members in their order. Raises `schema.canonical_json.NotJson`, a ValueError."""
    try:
        text = orjson.dumps(value, _plain_json, _OPTIONS)
    except orjson.JSONEncodeError:
        canonical_json.dumps(value)  # checks what orjson refuses or cannot encode
        return _dumps(value)
    if b"null" in text:
        _dumps(value)  # orjson writes NaN as null
    return text


def _decode_json(text: bytes) -> JsonValue:
    """Decode what `encode_json` wrote. Raises ValueError for anything else."""
    if text == _NULL:
        return None
    try:
        return strict_json.loads(text, max_bytes=_MAX_BYTES, max_depth=_MAX_DEPTH)
    except ToolFailure as refused:
        raise ValueError(refused.error.message) from None


def _decode_object(text: bytes) -> JsonObject:
    """Decode a JSON object. Raises ValueError for any other value."""
    value = _decode_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 — it is the text that is wrong
    return value


def _dumps(value: JsonValue) -> bytes:
    try:
        text = json.dumps(value, default=_plain_json, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except ValueError as error:
        raise canonical_json.NotJson(str(error)) from None


def _plain_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(type(value).__name__)


# Structs as msgpack.


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"{type(value).__name__} is not kept")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _decode(read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except ValueError as error:
        raise UnreadableRecord(str(error)) from None


def _decoder(record: type[T]) -> Callable[[bytes], T]:
    return partial(_decode, msgspec.msgpack.Decoder(record).decode)


class Field(NamedTuple):
    """How a field is stored that is not stored as the domain declares it."""

    kept_as: Any
    default: Any = msgspec.NODEFAULT
    """The value that is written for None, too."""
    write: Callable[[Any], Any] | None = None
    """Encodes the value; None: unchanged."""
    read: Callable[[Any], Any] | None = None
    """Decodes the value, may raise ValueError. None: unchanged."""


_VALUE: Final = Field(bytes, _NULL, encode_json, _decode_json)
_OBJECT: Final = Field(bytes, msgspec.NODEFAULT, encode_json, _decode_object)
_SOME_OBJECT: Final = Field(bytes | None, None, encode_json, _decode_object)
_MEMBERS: Final = Field(bytes, _EMPTY, lambda members: encode_json(members) if members else _EMPTY, _decode_object)


class Form(Generic[T]):
    """How a domain type is written: as a Struct with the same fields in their order.

    Fields at their default are omitted, unknown ones ignored and missing ones take their default, so that replicas of
    neighbouring versions read each other's records. A top-level record carries its format as `v`; a change that older
    readers would misread takes the next number, and they refuse it.
    """

    def __init__(
        self, domain: Callable[..., T], *, v: int | None = None, without: Sequence[str] = (), **fields: Field
    ) -> None:
        """`v`: None for a type inside another record. `without`: the last fields, which are not stored."""
        hints = get_type_hints(domain)
        given = {each.name: each.default for each in inspect.signature(domain).parameters.values()}
        self._domain = domain
        self._names = [name for name in given if name not in without]
        self._values_of: Callable[[T], tuple[Any, ...]] = attrgetter(*self._names)
        declared = [(name, fields.get(name) or Field(hints[name], _default(given[name]))) for name in self._names]
        defined = [(name, field.kept_as, field.default) for name, field in declared]
        self._writes = [(at, each.write, each.default) for at, (_, each) in enumerate(declared) if each.write]
        self._reads = [(at, each.read) for at, (_, each) in enumerate(declared) if each.read]
        # Positional arguments are ten times as fast as keywords, and impossible where a field without a default follows
        # one with a default.
        has_default = [default is not msgspec.NODEFAULT for *_, default in defined]
        self._by_name = has_default != sorted(has_default)
        tag_field = None if v is None else "v"
        self.record: Final = msgspec.defstruct(
            "Record", defined, tag_field=tag_field, tag=v, omit_defaults=True, kw_only=self._by_name, gc=False
        )
        self.read = msgspec.msgpack.Decoder(self.record).decode

    @property
    def required(self) -> Field:
        return Field(self.record, msgspec.NODEFAULT, self.to_record, self.of_record)

    @property
    def optional(self) -> Field:
        return Field(self.record | None, None, self.to_record, self.of_record)

    @property
    def with_defaults(self) -> Field:
        """Return the field for a type whose fields all have defaults."""
        return self.required._replace(default=msgspec.field(default_factory=self.record))

    @property
    def many(self) -> Field:
        """Return the field for a tuple of such values."""
        write, read = self.to_record, self.of_record
        kept_as = tuple[self.record, ...]  # type: ignore[name-defined]
        return Field(kept_as, (), lambda values: tuple(map(write, values)), lambda kept: tuple(map(read, kept)))

    def to_record(self, value: T) -> msgspec.Struct:
        """Return the record. Raises ValueError for what cannot be written."""
        values = [*self._values_of(value)]
        for at, write, default in self._writes:
            values[at] = default if values[at] is None else write(values[at])
        return self.record(**dict(zip(self._names, values, strict=True))) if self._by_name else self.record(*values)

    def of_record(self, record: msgspec.Struct) -> T:
        """Return the domain value. Raises ValueError."""
        values = [*astuple(record)]
        for at, read in self._reads:
            if values[at] is not None:
                values[at] = read(values[at])
        return self._domain(*values)

    def encode(self, value: T) -> bytes:
        """Return the bytes. Raises ValueError for what cannot be written."""
        return _encode(self.to_record(value))

    def decode(self, data: bytes) -> T:
        """Return the domain value. Raises UnreadableRecord."""
        try:
            return self.of_record(self.read(data))
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None


def _default(given: Any) -> Any:
    """Return the default as msgspec takes it, which of mappings allows only an empty dict."""
    if given is inspect.Parameter.empty:
        return msgspec.NODEFAULT
    return {} if isinstance(given, Mapping) else given


# Results, and jobs with their statuses. Not stored are how a call's arguments came, what of an error concerns the
# breaker of that call, and the upstream's own answer in a result.

VIOLATION: Final = Form(Violation, expected=_VALUE)
ERROR: Final = Form(ToolError, without=["blames_upstream"], violations=VIOLATION.many, details=_MEMBERS)
EVIDENCE: Final = Form(Evidence)
RESULT: Final = Form(
    ToolResult,
    v=1,
    without=["raw"],
    value=_VALUE,
    error=ERROR.optional,
    evidence=EVIDENCE.many,
    said=_SOME_OBJECT,
)
STATUS: Final = Form(JobStatus, v=1, result=RESULT.optional)
BUDGET: Final = Form(BudgetRequest)
CONTEXT: Final = Form(ExecContext, budget=BUDGET.with_defaults)
PRINCIPAL: Final = Form(Principal, without=["tenancy", "subject_token"])
CALL: Final = Form(
    Call,
    without=["unread", "unread_bytes"],
    args=Field(bytes),
    principal=PRINCIPAL.required,
    context=CONTEXT.with_defaults,
    args_error=ERROR.optional,
)
JOB: Final = Form(Job, v=1, call=CALL.required, status=Field(None, None))

encode_result, decode_result = RESULT.encode, RESULT.decode
encode_status, decode_status = STATUS.encode, STATUS.decode
encode_args: Final[Callable[[JsonObject], bytes]] = encode_json


def encode_job_frame(job: Job) -> bytes:
    """Encode the job without its status, which changes often, and its arguments, which may be large: both are stored
    apart."""
    record: Any = JOB.to_record(job)
    record.status, record.call.args = None, b""
    return _encode(record)


def decode_job(parts: Sequence[bytes]) -> Job:
    """Decode a job from its frame, its status and its arguments. Raises UnreadableRecord."""
    frame, status, args = parts
    try:
        record: Any = JOB.read(frame)
        record.status, record.call.args = decode_status(status), _decode_object(args)
        return JOB.of_record(record)
    except ValueError as error:
        raise UnreadableRecord(str(error)) from None


# Keys, kept inner calls, pins, artifacts, remembered items and uses of tools.

KEY: Final = Form(KeyRecord, v=1, result=RESULT.optional)
KEPT_CALL: Final = Form(KeptCall, v=1, answer=RESULT.optional)
PIN: Final = Form(Pin, v=1, definition=_OBJECT)

encode_key_record, decode_key_record = KEY.encode, KEY.decode
encode_kept_call, decode_kept_call = KEPT_CALL.encode, KEPT_CALL.decode
encode_pin, decode_pin = PIN.encode, PIN.decode


def encode_artifact(artifact: Artifact) -> bytes:
    return _encode(artifact)


decode_artifact: Final[Callable[[bytes], Artifact]] = _decoder(Artifact)


def encode_credential(credential: StoredCredential) -> bytes:
    return _encode(credential)


decode_credential: Final[Callable[[bytes], StoredCredential]] = _decoder(StoredCredential)


def encode_item(item: MemoryItem) -> bytes:
    return _encode(item)


decode_item: Final[Callable[[bytes], MemoryItem]] = _decoder(MemoryItem)


def encode_use(use: ToolUse) -> bytes:
    return _encode(use)


decode_use: Final[Callable[[bytes], ToolUse]] = _decoder(ToolUse)

# Approvals. One that answers a tool's question has its own format: a version without questions must not read it as an
# approval by a rule.

QUESTION: Final = Form(Question, schema=_OBJECT, continuation=Field(str, ""))
RULED: Final = Form(Approval, v=1, without=["question", "round", "covers_rule_id", "answer"])
ANSWERING: Final = Form(
    Approval,
    v=2,
    question=QUESTION.required,
    round=Field(int),
    answer=_SOME_OBJECT,
)


def encode_approval(approval: Approval) -> bytes:
    return (RULED if approval.question is None else ANSWERING).encode(approval)


def _read_approval(data: bytes) -> Approval:
    record = _APPROVALS.decode(data)
    return (ANSWERING if isinstance(record, ANSWERING.record) else RULED).of_record(record)


_APPROVALS: Final = msgspec.msgpack.Decoder(RULED.record | ANSWERING.record)
decode_approval: Final[Callable[[bytes], Approval]] = partial(_decode, _read_approval)
