"""The bell of the audit log's thread."""

from __future__ import annotations

import threading

from toolhub_service.telemetry.bell import Bell


def test_whoever_waits_is_woken() -> None:
    bell, woken = Bell(), threading.Event()

    def wait() -> None:
        bell.wait(None)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    bell.ring()
    thread.join(30)
    assert woken.is_set()


def test_bell_that_was_rung_before_anybody_waited_is_heard_once() -> None:
    bell, heard = Bell(), 0
    bell.ring()
    bell.ring()
    while bell.wait(0.0):
        heard += 1
    assert heard == 1


def test_bell_that_was_hushed_is_not_heard() -> None:
    bell = Bell()
    bell.hush()
    assert not bell.wait(0.0)
    bell.ring()
    bell.hush()
    assert not bell.wait(0.0)
