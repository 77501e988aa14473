from __future__ import annotations

import pytest

from tests.recordings.shapes import CutList, CutObject, Loose, differences, read_cut

STRICT = Loose()
TRACE = "ResponseError: no such thing\n    at find (/opt/n8n/live.ts:193:10)"


@pytest.mark.parametrize(
    ("recorded", "answered"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {"a": ""}),
        ({"a": True}, {"a": 1}),
        ({"a": "Not Found"}, {"a": "not found"}),
        ([1], [1, 2]),
        ([{"a": 1}], [{"a": 2}]),
        ("2026-11-21T20:55:20.334Z", "2026-11-21"),
        (TRACE, "ResponseError: another thing\n    at find (/x.ts:1:1)"),
        (TRACE, "ResponseError: no such thing"),
        (CutObject(a=1), {"b": 1}),
        (CutList([1, 2]), [1]),
    ],
)
def test_differences_are_reported(recorded: object, answered: object) -> None:
    assert list(differences(recorded, answered, STRICT)) != []


@pytest.mark.parametrize(
    ("recorded", "answered"),
    [
        ({"a": 1, "b": [None]}, {"b": [None], "a": 1}),
        ("2026-11-21T20:55:20.334Z", "2027-01-01T00:00:00.000Z"),
        (TRACE, "ResponseError: no such thing\n    at elsewhere (/x.ts:1:1)\n    at /y.ts:2:2"),
        (CutObject(a=1), {"a": 1, "b": 2}),
        (CutList([1]), [1, 2]),
    ],
)
def test_values_that_vary_between_runs_do_not_differ(recorded: object, answered: object) -> None:
    assert list(differences(recorded, answered, STRICT)) == []


def test_loose_values_are_compared_by_type_alone() -> None:
    loose = Loose((".rows[].id",))
    assert list(differences({"rows": [{"id": "a"}]}, {"rows": [{"id": "b"}]}, loose)) == []
    assert list(differences({"rows": [{"id": "a"}]}, {"rows": [{"id": 1}]}, loose)) != []


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('{"a":1}', {"a": 1}),
        ('{"a":1,"b":[1,{"c":"x","d":"y', {"a": 1, "b": [1, {"c": "x"}]}),
        ('{"a":12', {}),
        ('{"a":{"b":1},"c', {"a": {"b": 1}}),
        ("[[1,2],[3", [[1, 2], []]),
    ],
)
def test_a_cut_recording_is_read_as_far_as_it_goes(text: str, read: object) -> None:
    assert read_cut(text) == read


def test_invalid_json_is_not_read() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        read_cut("Authorization data is wrong!")
