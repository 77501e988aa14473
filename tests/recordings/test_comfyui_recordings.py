"""The fake ComfyUI does what the real one did: every recording of both versions, event by event."""

from __future__ import annotations

from collections import Counter

import aiohttp
import pytest

from tests.fakes.comfyui import fake_comfyui
from tests.recordings.comfyui_recording import VERSIONS, recordings, whole_answer
from tests.recordings.comfyui_replay import Replay, heading
from tests.recordings.comfyui_rules import RULES, normal

UNRECORDED_RUNS = {"c12_cached_output_deleted": 40}
"""Prompts that were run between a recording and the one before it: the measurement of the race."""
KINDS = {"http", "ws_open", "ws_send", "ws_recv", "ws_closed", "wait_timeout", "note"}


@pytest.mark.promise("fakes.held-to-recordings")
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_fake_does_again_what_the_recorded_server_did(version: str) -> None:
    differed: list[str] = []
    ids: dict[str, str] = {}
    async with fake_comfyui(version) as comfy, aiohttp.ClientSession() as session:
        for recording in recordings(version):
            comfy.number += UNRECORDED_RUNS.get(recording.name, 0)
            replay = Replay(comfy, recording, session, ids)
            await replay.all()
            differed += replay.differed
    assert differed == []


@pytest.mark.parametrize("version", VERSIONS)
def test_no_recording_is_empty_and_every_kind_of_event_is_replayed(version: str) -> None:
    found = recordings(version)
    assert len(found) >= 12
    assert all(recording.events for recording in found)
    assert {event["kind"] for recording in found for event in recording.events} <= KINDS


def test_every_rule_is_needed() -> None:
    used: Counter[str] = Counter()
    for version in VERSIONS:
        for recording in recordings(version):
            for event in recording.events:
                if event["kind"] == "http":
                    answer = {"headers": event["headers"], "response": whole_answer(event)}
                    normal((f"{event['method']} {event['path']}",), answer, used)
                elif event["kind"] == "ws_recv":
                    normal((heading(event["data"]),), event["data"], used)
    assert {rule.name for rule in RULES} == used.keys()


def test_bodies_and_interrupts_that_the_recorder_blurred_are_there() -> None:
    found = [recording for version in VERSIONS for recording in recordings(version)]
    assert sum(len(recording.changed_bodies()) for recording in found) > 0
    late = [recording.late_interrupt(index) for recording in found for index in range(len(recording.events))]
    assert any(late)
