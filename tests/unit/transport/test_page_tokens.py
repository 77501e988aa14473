"""Opaque things: cursors of pages and ids of calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.clock import FixedRandomness, ManualClock
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.spec import Code
from toolhub_service.runtime.call_ids import CallIds
from toolhub_service.transport.page_tokens import read_cursor, write_cursor


@given(
    cursor=st.tuples(
        st.integers(0, 2**60), st.text(st.characters(max_codepoint=127), max_size=100), st.integers(0, 2**60)
    )
)
def test_cursor_comes_back_as_it_went(cursor: tuple[int, str, int]) -> None:
    assert read_cursor(write_cursor(cursor)) == cursor


def test_an_empty_token_is_the_first_page() -> None:
    assert read_cursor("") is None


@given(token=st.text(min_size=1, max_size=200))
def test_any_other_text_is_refused_and_never_crashes(token: str) -> None:
    with pytest.raises(HubFailure) as refused:
        read_cursor(token)
    assert (refused.value.reason.code, refused.value.reason.name) == (Code.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")


@pytest.mark.parametrize("token", ["W10", "WzEsMl0", "e30", "bnVsbA", "[[[[", "A" * 1_000])
def test_json_of_another_shape_is_refused(token: str) -> None:
    with pytest.raises(HubFailure):
        read_cursor(token)


def test_call_ids_sort_by_time_and_never_repeat() -> None:
    clock, randomness = ManualClock(), FixedRandomness()
    ids = []
    for _ in range(50):
        ids.append(CallIds(clock, randomness).next())
        clock.advance(0.001)
    assert ids == sorted(ids)
    assert len(set(ids)) == 50
    assert {len(id) for id in ids} == {len("call_") + 12 + 16}


def test_call_ids_drawn_together_are_like_those_drawn_one_by_one() -> None:
    ids = CallIds(ManualClock(), SystemRandomness())
    drawn = [ids.next() for _ in range(200)]
    assert len(set(drawn)) == 200
    assert {len(id) for id in drawn} == {len("call_") + 12 + 16}
    assert len({id[:17] for id in drawn}) == 1
