"""Every entry of the recordings of a real n8n 2.8.4, replayed against the fake: the same status, type and shape."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests import fixtures
from tests.recordings.n8n_replay import NOT_REPLAYED, Entry, Replayed, Reply, entries, renamed, replay
from tests.recordings.shapes import Loose, differences, read_cut

ENTRIES = entries()
LOOSE = Loose(
    (
        # Numbers that count or measure.
        *(".timestamp", ".startTime", ".executionTime", ".establishedAt", ".userActivatedAt", ".versionCounter"),
        ".workflowPublishHistory[].id",
        # Names that the server or the client chose.
        *(".apiKey", ".rawApiKey", ".projectId", ".project.id", "$.data.id", ".firstSuccessfulWorkflowId"),
        *(".host", ".user-agent", ".accept-encoding", ".webhookUrl", ".loginUrl"),
        # Long lists of which the fake has a few.
        *(".globalScopes", "$.data"),
    )
)
"""What differs from one n8n to the next."""


@pytest.fixture(scope="module")
def replayed() -> Replayed:
    return asyncio.run(replay())


def test_the_recordings_are_here() -> None:
    assert fixtures.path("n8n", "workflows").is_dir()


@pytest.mark.promise("fakes.held-to-recordings")
@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in ENTRIES])
def test_the_fake_answers_as_the_real_one_did(entry: Entry, replayed: Replayed) -> None:
    if entry.name in NOT_REPLAYED:
        assert entry.name not in replayed.replies
        return
    answer = replayed.replies[entry.name]
    assert isinstance(answer, Reply), f"{answer!r}"
    if answer.response is None:
        assert answer.value == _recorded_value(entry.recorded)
        return
    assert answer.response.status_code == entry.recorded["status"], answer.response.text
    assert _headers_differ(entry.recorded, answer.response) == []
    assert _bodies_differ(entry, answer.response, replayed.ids) == []


def test_every_exception_of_the_table_names_an_existing_entry() -> None:
    fixtures.path("n8n")
    assert NOT_REPLAYED.keys() <= {entry.name for entry in ENTRIES}


def test_every_entry_of_the_corpus_is_tried(replayed: Replayed) -> None:
    assert replayed.replies.keys() | NOT_REPLAYED.keys() == {entry.name for entry in ENTRIES}


def _recorded_value(recorded: dict[str, Any]) -> Any:
    """Of entries that are no request."""
    if "exc" in recorded:
        return recorded["exc"].partition("(")[0]
    return recorded["value"] if "value" in recorded else {key: recorded[key] for key in ("codes", "own")}


def _headers_differ(recorded: dict[str, Any], response: httpx.Response) -> list[str]:
    """Only those that were noted; later recordings note none."""
    noted = {"ctype": "content-type", "xid": "x-execution-id"}
    return [
        f"{header}: {recorded[key]!r} was recorded, and {response.headers.get(header)!r} was said"
        for key, header in noted.items()
        if key in recorded and response.headers.get(header) != recorded[key]
    ]


def _bodies_differ(entry: Entry, response: httpx.Response, ids: dict[str, str]) -> list[str]:
    text = renamed(entry.recorded["resp"], ids)
    try:
        value = read_cut(text)
    except ValueError:
        return [] if response.text == text else [f"{text!r} was recorded, and {response.text!r} was said"]
    # A list of rows is compared row by row, a list of words (what a key may be allowed) is not.
    rows = isinstance(value, dict) and isinstance(value.get("data"), list) and "scopes" not in entry.label
    loose = Loose(tuple(end for end in LOOSE.ends if not (rows and end == "$.data")))
    return list(differences(value, response.json(), loose))
