"""The small parts: what bytes are, pictures without their graphs, names, states of both versions, news of nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import fixtures
from tests.fakes.remote_harness import RecordingSink
from toolhub_service.adapters.comfyui.client import NoReply, Reply
from toolhub_service.adapters.comfyui.event_feed import NodeProgress
from toolhub_service.adapters.comfyui.files.media_types import choose_media_type, media_type_of
from toolhub_service.adapters.comfyui.files.metadata import SIGNATURE
from toolhub_service.adapters.comfyui.files.served_file import is_file_name, is_folder, served_file
from toolhub_service.adapters.comfyui.job import RisingProgress
from toolhub_service.adapters.comfyui.states import PromptState, read_status
from toolhub_service.domain.result import Progress

GRAPH: dict[str, Any] = {str(number): {"class_type": "Node", "inputs": {}} for number in range(1, 5)}


@pytest.mark.parametrize(
    ("data", "wanted", "taken"),
    [
        (SIGNATURE, ("image/png",), "image/png"),
        (SIGNATURE, ("image/*",), "image/png"),
        (SIGNATURE, (), "image/png"),
        (SIGNATURE, ("image/jpeg",), ""),
        (b"RIFF\0\0\0\0WEBPVP8 ", ("image/*",), "image/webp"),
        (b"\0\0\0\x20ftypisom", ("video/mp4",), "video/mp4"),
        (b"  <!DOCTYPE HTML>", (), ""),
        (b"\xef\xbb\xbf<svg onload=x>", ("image/*",), ""),
        (b"plain words", ("text/plain",), "text/plain"),
        (b"plain words", ("image/png",), ""),
        (b"plain words", ("image/*",), ""),
        (b"plain words", (), "application/octet-stream"),
        (b"MZ\x90\0", ("text/plain",), ""),
    ],
)
def test_bytes_are_typed_by_their_content(data: bytes, wanted: tuple[str, ...], taken: str) -> None:
    assert choose_media_type(data, wanted) == taken


def test_an_empty_file_has_no_media_type() -> None:
    assert media_type_of(b"") == ""


@given(st.text(max_size=40))
def test_no_name_of_a_file_leads_outside(name: str) -> None:
    if is_file_name(name):
        assert name not in {".", ".."}
        assert not set(name) & {"/", "\\", "\0", "\n", "\r", ":"}
    if is_folder(name):
        assert ".." not in name.replace("\\", "/").split("/")
        assert not name.startswith(("/", "\\"))


def test_a_file_without_a_type_is_an_output() -> None:
    file = served_file({"filename": "a.png"})
    assert file is not None
    assert file.params == {"filename": "a.png", "subfolder": "", "type": "output"}


class ScriptedClient:
    """A client that answers from a list, by path."""

    def __init__(self, answers: dict[str, list[Any]]) -> None:
        self._answers = answers

    async def get(self, path: str, params: object = None, *, max_bytes: int = 0) -> Reply:
        body = self._answers[path].pop(0)
        return Reply(404 if body is None else 200, body, "")


async def seen(answers: dict[str, list[Any]], *, has_jobs: bool = False) -> Any:
    client: Any = ScriptedClient(answers)
    return await read_status(client, "p", has_jobs=has_jobs)


async def test_a_prompt_that_moves_from_the_queue_to_the_history_between_two_looks_is_found() -> None:
    done = {"p": {"prompt": [1, "p", {}, {}, []], "outputs": {}, "status": {"status_str": "success", "messages": []}}}
    nothing: dict[str, Any] = {"queue_running": [], "queue_pending": []}
    assert (await seen({"/history/p": [{}, done], "/queue": [nothing]})).state is PromptState.SUCCEEDED
    assert (await seen({"/history/p": [{}, {}], "/queue": [nothing]})).state is PromptState.UNKNOWN


async def test_the_place_of_one_that_waits_counts_those_that_go_before() -> None:
    pending = [[9, "late", {}, {}, []], [5, "p", {}, {}, []], [-3, "front", {}, {}, []]]
    queue = {"queue_running": [[1, "now", {}, {}, []]], "queue_pending": pending}
    found = await seen({"/history/p": [{}], "/queue": [queue]})
    assert (found.state, found.place) == (PromptState.PENDING, (3, 4))


@pytest.mark.parametrize("body", [[], "x", 7, None, {"p": {"status": {"status_str": "perhaps"}}}, {"p": {}}])
async def test_a_history_that_cannot_be_understood_leaves_the_outcome_unknown(body: Any) -> None:
    with pytest.raises(NoReply):
        await seen({"/history/p": [body, body], "/queue": [{}]})


@pytest.mark.parametrize("status", [None, "done", 7, ["pending"]])
async def test_a_job_of_no_known_status_leaves_the_outcome_unknown(status: Any) -> None:
    with pytest.raises(NoReply):
        await seen({"/api/jobs/p": [{"status": status}]}, has_jobs=True)


@pytest.mark.parametrize("version", ["v0.33.0", "v0.3.64"])
def test_the_recorded_updates_of_a_run_go_from_nothing_to_all(version: str) -> None:
    events = fixtures.load_json("comfyui", "transcripts", version, "c05_long_progress.json")["events"]
    sent = next(event["body"] for event in events if event["kind"] == "http" and event["path"] == "/prompt")
    reported: list[Progress] = []
    node_progress = NodeProgress(sent["prompt"], reported.append)
    received = [_message(event) for event in events if event["kind"] == "ws_recv"]
    first = next(data["prompt_id"] for kind, data in received if kind == "execution_start")
    ends = [kind for kind, data in received if data.get("prompt_id") == first and node_progress.on_event(kind, data)]
    steps = [progress.step for progress in reported]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1], reported[-1].total) == (0, len(sent["prompt"]), len(sent["prompt"]))
    assert ends == ["executing"]


def _message(event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    message = next(value for value in event.values() if isinstance(value, dict) and "type" in value)
    return message["type"], message.get("data") or {}


news_of_nodes = st.fixed_dictionaries(
    {
        "nodes": st.one_of(
            st.dictionaries(
                st.sampled_from([*GRAPH, "9"]),
                st.fixed_dictionaries(
                    {
                        "state": st.sampled_from(["running", "finished", "?"]),
                        "value": st.one_of(st.floats(), st.integers(), st.none()),
                        "max": st.one_of(st.floats(), st.integers(), st.none()),
                    }
                ),
            ),
            st.lists(st.sampled_from([*GRAPH, "9"])),
            st.none(),
        ),
        "node": st.one_of(st.sampled_from([*GRAPH, "9"]), st.none(), st.integers()),
        "value": st.one_of(st.floats(), st.none()),
        "max": st.one_of(st.floats(), st.none()),
    }
)
kinds = st.sampled_from(
    ["progress_state", "progress", "executing", "execution_cached", "executed", "execution_success"]
)


@given(st.lists(st.tuples(kinds, news_of_nodes), max_size=30))
def test_reported_progress_never_goes_back_whatever_arrives(messages: list[tuple[str, dict[str, Any]]]) -> None:
    sink = RecordingSink()
    node_progress = NodeProgress(GRAPH, RisingProgress(sink).progress)
    for kind, data in messages:
        node_progress.on_event(kind, json.loads(json.dumps(data)))
    steps = [progress.step for progress in sink.progresses]
    assert steps == sorted(steps)
    assert all(0 <= step <= len(GRAPH) for step in steps)


def test_a_message_of_its_own_keeps_the_step_that_was_reached() -> None:
    sink = RecordingSink()
    rising = RisingProgress(sink)
    rising.progress(Progress(3.0, 5.0, "nodes", "third"))
    rising.progress(Progress(0.0, message="asked to stop"))
    assert sink.progresses[-1] == Progress(3.0, 5.0, "nodes", "asked to stop")
