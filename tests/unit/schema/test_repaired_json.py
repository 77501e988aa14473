"""JSON of others that strict parsers refuse: repaired where its meaning is certain, else refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.repaired_json import (
    BYTE_ORDER_MARK,
    CONTROLS,
    DUPLICATES,
    HALVES,
    NO_NUMBER,
    NOT_UTF8,
    OUT_OF_RANGE,
    loads_repaired,
    read_repaired,
    repair_evidence,
    repair_value,
)

REPAIRED = [
    (rb'{"a":"bad \ud83d half"}', {"a": "bad \ufffd half"}, {HALVES}),
    (rb'{"a":"\ude00\ud83d\ude00\ud83d"}', {"a": "\ufffd\U0001f600\ufffd"}, {HALVES}),
    (rb'{"\ud83d":1}', {"\ufffd": 1}, {HALVES}),
    (b'{"a":"\xed\xa0\xbd"}', {"a": "\ufffd"}, {HALVES}),
    (b'{"a":"caf\xe9"}', {"a": "caf\ufffd"}, {NOT_UTF8}),
    (b'{"a":NaN,"b":[Infinity,-Infinity]}', {"a": None, "b": [None, None]}, {NO_NUMBER}),
    (b'{"a":1e999,"b":1.5}', {"a": "1e999", "b": 1.5}, {OUT_OF_RANGE}),
    (b'{"a":-' + b"9" * 5_000 + b"}", {"a": "-" + "9" * 5_000}, {OUT_OF_RANGE}),
    (b'{"a":"x\ty\n"}', {"a": "x\ty\n"}, {CONTROLS}),
    (b"\xef\xbb\xbf[1]", [1], {BYTE_ORDER_MARK}),
    (rb'[NaN,"\ud83d",{"a":1,"a":2}]', [None, "\ufffd", {"a": 2}], {NO_NUMBER, HALVES, DUPLICATES}),
]


@pytest.mark.parametrize(("text", "value", "remarks"), REPAIRED)
def test_what_strict_parsers_refuse_is_repaired_with_a_remark(text: bytes, value: Any, remarks: set[str]) -> None:
    for repaired in (loads_repaired(text), read_repaired(text)):
        assert repaired is not None
        assert repaired.value == value
        assert set(repaired.remarks) == remarks
        dumps(repaired.value)


def test_a_name_that_appears_twice_keeps_its_last_value() -> None:
    assert loads_repaired(b'{"a":1,"b":{"c":1,"c":[2]}}') == ({"a": 1, "b": {"c": [2]}}, (DUPLICATES,))
    assert loads_repaired(b'{"a":1,"a":2}') == ({"a": 2}, (DUPLICATES,))


@pytest.mark.parametrize(
    "text", [b"", b"{a:1}", b"[1,]", b"{'a':1}", b'{"a":1', b"[1] [2]", b"nan", b"\xff", b"// x\n1", b"[" * 5_000]
)
def test_what_is_no_json_at_all_is_still_refused(text: bytes) -> None:
    with pytest.raises(ToolFailure):
        loads_repaired(text)
    assert read_repaired(text) is None


def test_bounds_are_not_repaired_away() -> None:
    with pytest.raises(ToolFailure) as deep:
        loads_repaired(b"[" * 65 + b"NaN" + b"]" * 65)
    assert deep.value.error.details["reason"] in ("too_deep", "syntax")
    with pytest.raises(ToolFailure) as large:
        loads_repaired(b'"' + b"x" * 100 + b'"', max_bytes=10)
    assert large.value.error.details["reason"] == "too_large"


TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_any_value_can_be_written_once_it_is_repaired(value: Any) -> None:
    repaired = repair_value(value)
    written = json.dumps(repaired.value, ensure_ascii=False, allow_nan=False).encode()
    assert repair_value(repaired.value) == (repaired.value, ())
    if not repaired.remarks:
        assert json.loads(written) == json.loads(json.dumps(value))


@given(VALUES)
def test_what_pythons_own_writer_wrote_is_always_read(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        repaired = loads_repaired(text.encode("utf-8", "surrogatepass"))
        assert msgspec.json.encode(repaired.value), "what is delivered can be written again"


def test_a_strict_text_is_left_alone_and_needs_no_evidence() -> None:
    text = '{"a":["é😀",1e300,12345678901234567890123,{"b":null}]}'
    assert loads_repaired(text.encode()) == (json.loads(text), ())
    assert repair_evidence("x", ()) == ()
    (proof,) = repair_evidence("call-1", (HALVES, NO_NUMBER))
    assert (proof.ref, proof.attributes["repaired"]) == ("call-1", f"{HALVES}; {NO_NUMBER}")
