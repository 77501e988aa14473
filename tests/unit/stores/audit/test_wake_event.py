"""The event that wakes the audit log's thread."""

from __future__ import annotations

import threading

from toolhub_service.stores.audit.writer import WakeEvent


def test_every_waiter_is_woken() -> None:
    wake, woken = WakeEvent(), threading.Event()

    def wait() -> None:
        wake.wait(None)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wake.set()
    thread.join(60)
    assert woken.is_set()


def test_event_that_was_set_twice_before_anybody_waited_wakes_once() -> None:
    wake, times = WakeEvent(), 0
    wake.set()
    wake.set()
    while wake.wait(0.0):
        times += 1
    assert times == 1


def test_event_that_was_cleared_wakes_nobody() -> None:
    wake = WakeEvent()
    wake.clear()
    assert not wake.wait(0.0)
    wake.set()
    wake.clear()
    assert not wake.wait(0.0)
