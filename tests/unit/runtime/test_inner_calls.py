"""What the calls of a running call may use."""

from __future__ import annotations

from toolhub_service.runtime.inner_calls import Account


def test_what_one_takes_all_above_it_have_less_of_and_nothing_else_is_taken() -> None:
    above = Account(calls=3, bytes=100)
    account = Account(calls=2, bytes=1_000, above=above)
    account.take(calls=1)
    assert (above.calls_left, above.bytes_left) == (2, 100)
    account.take(bytes=30)
    assert (above.calls_left, above.bytes_left) == (2, 70)
    assert (account.calls_left, account.bytes_left) == (1, 70)
