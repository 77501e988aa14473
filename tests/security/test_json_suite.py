"""JSONTestSuite (nst): what must be refused is refused, what must be read is read, the rest never breaks anything."""

from __future__ import annotations

import base64
import json
from contextlib import suppress

import pytest

from tests.corpora import load_json
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.strict_json import loads


def _cases(kind: str) -> dict[str, bytes]:
    files: dict[str, str] = load_json("json/JSONTestSuite_parsing_b64.json.gz")
    cases = {name: base64.b64decode(data) for name, data in files.items() if name.startswith(kind)}
    assert len(cases) > 30
    return cases


@pytest.mark.promise("contract.strict-json")
def test_every_invalid_text_is_refused_as_invalid_input() -> None:
    for name, data in _cases("n_").items():
        with pytest.raises(ToolFailure) as caught:
            raise AssertionError(f"{name} was read as {loads(data)!r}")
        assert caught.value.error.kind is ErrorKind.INVALID_INPUT, name


#: RFC 8259 section 4 lets a parser choose; two readers may then see two calls, so duplicates are refused here.
_DUPLICATES = {"y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"}


def test_every_valid_text_is_read_like_the_standard_library_does() -> None:
    for name, data in _cases("y_").items():
        if name in _DUPLICATES:
            with pytest.raises(ToolFailure):
                loads(data)
        else:
            value = loads(data)
            assert repr(value) == repr(json.loads(data)), name
            assert loads(dumps(value)) == value, name


def test_texts_that_parsers_disagree_about_are_read_or_refused_but_never_break() -> None:
    read: set[str] = set()
    for name, data in _cases("i_").items():
        with suppress(ToolFailure):
            value = loads(data)
            assert loads(dumps(value)) == value, name
            read.add(name.removeprefix("i_").split("_")[0])
    assert read <= {"number"}, "only numbers may be read where parsers differ; texts and structures are refused"


def test_values_that_other_parsers_transform_are_kept_or_refused() -> None:
    files: dict[str, str] = load_json("json/JSONTestSuite_transform_b64.json.gz")
    for name, encoded in files.items():
        data = base64.b64decode(encoded)
        try:
            value = loads(data)
        except ToolFailure:
            assert name.startswith(("object_same_key", "string_")), name
        else:
            assert repr(value) == repr(json.loads(data)), name
