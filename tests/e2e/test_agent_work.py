"""An agent's work end to end: fetch, select, render, write, evidence, read; and a tamper-evident audit log."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.http_server import always, response, serving
from tests.hub import RunningHub, running_hub
from toolhub.v1 import audit_service_pb2, event_pb2
from toolhub_client import Answer, Context, connect
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.domain.event import ChainedEvent, ChainFault, EventType, Verification
from toolhub_service.schema.canonical_json import digest
from toolhub_service.settings.document import Settings
from toolhub_service.stores.audit.events import COLUMNS
from toolhub_service.stores.audit.keyring import open_keyring
from toolhub_service.stores.audit.verify import verify_log

CATALOGUE = {"books": [{"title": "Emma", "price": 8}, {"title": "Ulysses", "price": 20}, {"title": "Odes", "price": 5}]}
BODY = json.dumps(CATALOGUE).encode()
REPORT = "# Cheap books\n- Emma\n- Odes\n"
REPORT_SHA256 = hashlib.sha256(REPORT.encode()).hexdigest()
WORK = (
    "core/http.fetchJson",
    "core/util.json.select",
    "core/util.template.render",
    "core/fs.writeText",
    "core/fs.sha256",
    "core/fs.readText",
)

READS = frozenset(WORK) - {"core/http.fetchJson", "core/fs.writeText"}

Invoke = Callable[[str, Mapping[str, Any]], Any]
"""One call that must succeed: its value and its evidence."""


def policy(port: int) -> str:
    return f"""
extends: none
grants:
  - {{principals: [local], capabilities: [read:fs, write:fs, network]}}
roles:
  - {{principals: [local], roles: [agent, auditor]}}
egress:
  - {{hosts: ["127.0.0.1"], ports: [{port}], cidrs: [127.0.0.0/8]}}
"""


@asynccontextmanager
async def bookshop(tmp_path: Path) -> AsyncIterator[tuple[RunningHub, str]]:
    """A hub, and the URL of the one server it may reach."""
    shop = serving(always(response(BODY, content_type="application/json")))
    async with shop as server, running_hub(tmp_path, policy=policy(server.port)) as hub:
        yield hub, server.url("/books")


async def work(invoke: Invoke, url: str) -> list[tuple[Mapping[str, Any], Any]]:
    """Six calls, each on what the one before gave; the arguments and the answer of each."""
    done: list[tuple[Mapping[str, Any], Any]] = []

    async def step(args: Mapping[str, Any]) -> Any:
        answer = await invoke(WORK[len(done)], args)
        done.append((args, answer))
        return answer.value if isinstance(answer, Answer) else json.loads(answer.result_json)

    fetched = await step({"url": url})
    cheap = await step({"json": fetched["json"], "path": "books[?price < `10`].title"})
    template = "# Cheap books\n{{#.}}\n- {{.}}\n{{/.}}\n"
    rendered = await step({"template": template, "data": cheap["value"]})
    await step({"path": "reports/cheap.md", "text": rendered["text"]})
    hashed = await step({"path": "reports/cheap.md"})
    read = await step({"path": "reports/cheap.md"})
    assert (read["text"], hashed["sha256"]) == (REPORT, REPORT_SHA256)
    return done


def check_evidence(results: list[Any]) -> None:
    """Each answer proves itself, and the hashes agree from the wire to the disk."""
    assert all(result.ok and result.evidence for result in results)
    by_tool = {result.tool: result.evidence[0] for result in results}
    assert list(by_tool) == list(WORK)
    assert by_tool["core/http.fetchJson"].sha256 == hashlib.sha256(BODY).hexdigest()
    assert by_tool["core/http.fetchJson"].attributes["address"] == "127.0.0.1"
    for tool in WORK[3:]:
        assert (by_tool[tool].ref, by_tool[tool].sha256) == ("reports/cheap.md", REPORT_SHA256)


def check_events(events: list[ChainedEvent], results: list[Any], args: list[Mapping[str, Any]], revision: str) -> None:
    """Two events a call, asked before settled, and one of a read; calls in the order they were made."""
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    of_calls = {id: [each.event for each in group] for id, group in groupby(events, lambda each: each.event.call_id)}
    assert list(of_calls) == [result.call_id for result in results]
    for place, result in enumerate(results):
        own = of_calls[result.call_id]
        asked, settled = own[0], own[-1]
        assert [event.type for event in own] == [EventType.TOOL_CALLED, EventType.TOOL_RESULT][-len(own) :]
        assert (len(own), settled.outcome) == (1 if result.tool in READS else 2, "ok")
        for event in own:
            assert (event.call_id, event.tool, event.principal) == (result.call_id, result.tool, "local")
            assert (event.tool_digest, event.policy_revision) == (result.tool_digest, revision)
            assert event.request_id == "books-1"
        assert asked.args_digest == settled.args_digest
        assert len(asked.args_digest) == 64
        if not result.defaults_applied:
            assert asked.args_digest == digest(dict(args[place]))
        assert asked.args_summary.startswith("{")


async def test_the_work_is_done_proved_and_recorded_call_by_call(tmp_path: Path) -> None:
    async with bookshop(tmp_path) as (hub, url):

        async def invoke(tool: str, args: Mapping[str, Any]) -> Any:
            return await hub.invoke(tool, args, request_id="books-1")

        done = await work(invoke, url)
        results = [result for _, result in done]
        check_evidence(results)
        assert (hub.workspace("books-1") / "reports/cheap.md").read_text() == REPORT
        check_events(await hub.events(), results, [args for args, _ in done], hub.hub.policy.revision)
        verified = await hub.audit.VerifyAudit(audit_service_pb2.VerifyAuditRequest())
        assert (verified.ok, verified.events_checked, list(verified.faults)) == (True, 8, [])


async def test_the_python_client_does_the_same_work(tmp_path: Path) -> None:
    async with bookshop(tmp_path) as (hub, url), connect(hub.address, context=Context(request_id="books-1")) as client:

        async def invoke(tool: str, args: Mapping[str, Any]) -> Answer:
            return await client.invoke(tool, args, purpose="a list of cheap books")

        done = await work(invoke, url)
        results = [answer.result for _, answer in done]
        check_evidence(results)
        check_events(await hub.events(), results, [args for args, _ in done], hub.hub.policy.revision)
        purposes = {chained.event.purpose for chained in await hub.events()} - {""}
        assert purposes == {"a list of cheap books"}


async def test_the_auditor_reads_over_the_wire_what_the_log_holds(tmp_path: Path) -> None:
    async with bookshop(tmp_path) as (hub, url):
        await hub.invoke("core/http.fetchJson", {"url": url}, request_id="books-1")
        await hub.invoke("core/fs.readText", {"path": "../../etc/passwd"}, request_id="books-1")
        listed = await hub.audit.ListEvents(audit_service_pb2.ListEventsRequest())
        types = [event_pb2.EventType.Name(event.type) for event in listed.events]
        kinds = [name.removeprefix("EVENT_TYPE_") for name in types]
        assert kinds == ["TOOL_CALLED", "TOOL_RESULT", "POLICY_DENIED"]
        assert [event.mac for event in listed.events] == [chained.mac for chained in (await hub.events())[:3]]
        for before, after in zip(listed.events, listed.events[1:], strict=False):
            assert after.previous_mac == before.mac


# The audit log of that work, after the hub has left, in the hands of someone who lacks the key.


@pytest.fixture
async def settings(tmp_path: Path) -> Settings:
    """Where the files of a hub lie that did the work and ended."""
    async with bookshop(tmp_path) as (hub, url):

        async def invoke(tool: str, args: Mapping[str, Any]) -> Any:
            return await hub.invoke(tool, args, request_id="books-1")

        await work(invoke, url)
        chosen = hub.hub.settings
    assert verified(Paths(chosen).audit, chosen).ok
    return chosen


def verified(database: Path, settings: Settings) -> Verification:
    """What `toolhub audit verify` finds in a copy of the database."""
    paths = Paths(settings)
    return verify_log(database, paths.audit_checkpoints, open_keyring(paths.audit_key, create=False))


def copied(settings: Settings, tmp_path: Path) -> Path:
    copy = tmp_path / "copy.db"
    shutil.copyfile(Paths(settings).audit, copy)
    return copy


def tamper(database: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement, values in statements:
            connection.execute(statement, values)


def first_bad(database: Path, settings: Settings) -> list[int]:
    return [fault.sequence for fault in verified(database, settings).faults]


def changed(value: object) -> object:
    """The value with one byte another one; text that was empty gets one."""
    if isinstance(value, int):
        return value ^ 1
    text = str(value)
    middle = len(text) // 2
    return text[:middle] + chr(ord(text[middle]) ^ 1) + text[middle + 1 :] if text else "x"


async def test_one_changed_byte_in_any_column_of_any_row_is_named(settings: Settings, tmp_path: Path) -> None:
    copy = copied(settings, tmp_path)
    original = copy.read_bytes()
    names = COLUMNS.split(", ")
    with closing(sqlite3.connect(copy)) as connection:
        rows = connection.execute(f"SELECT {COLUMNS} FROM events ORDER BY sequence").fetchall()
    assert len(rows) == 8
    for row in rows:
        writer, sequence = row[:2]
        for column, value in zip(names, row, strict=True):
            to = changed(value) if column != "sequence" else 1_000 + sequence
            tamper(copy, (f"UPDATE events SET {column} = ? WHERE sequence = ?", (to, sequence)))
            faults = verified(copy, settings).faults
            assert [fault.sequence for fault in faults if fault.writer == writer] == [sequence], (column, sequence)
            copy.write_bytes(original)
    assert verified(copy, settings).ok


@pytest.mark.parametrize("sequence", [1, 2, 5, 7, 8])
async def test_a_deleted_event_is_named(settings: Settings, tmp_path: Path, sequence: int) -> None:
    copy = copied(settings, tmp_path)
    tamper(copy, ("DELETE FROM events WHERE sequence = ?", (sequence,)))
    assert first_bad(copy, settings) == [sequence]


async def test_two_swapped_events_are_named_at_the_first(settings: Settings, tmp_path: Path) -> None:
    copy = copied(settings, tmp_path)
    swaps = [(-1, 5), (5, 9), (9, -1)]
    tamper(copy, *[("UPDATE events SET sequence = ? WHERE sequence = ?", swap) for swap in swaps])
    assert first_bad(copy, settings) == [5]


@pytest.mark.parametrize("kept", [0, 1, 3, 6])
async def test_a_cut_tail_is_named(settings: Settings, tmp_path: Path, kept: int) -> None:
    copy = copied(settings, tmp_path)
    tamper(copy, ("DELETE FROM events WHERE sequence > ?", (kept,)))
    assert first_bad(copy, settings) == [kept + 1]


async def test_a_serving_hub_names_what_was_done_to_its_log_behind_its_back(tmp_path: Path) -> None:
    async with bookshop(tmp_path) as (hub, url):
        for _ in range(3):
            await hub.invoke("core/http.fetchJson", {"url": url}, request_id="books-1")
        assert len(await hub.events()) == 6
        where = Paths(hub.hub.settings).audit
        tamper(where, ("UPDATE events SET principal = 'innocent' WHERE sequence = 4", ()))
        answer = await hub.audit.VerifyAudit(audit_service_pb2.VerifyAuditRequest())
        assert not answer.ok
        assert answer.first_bad == answer.faults[0]
        (fault,) = [ChainFault(fault.writer, fault.sequence, fault.reason) for fault in answer.faults]
        assert (fault.writer, fault.sequence) == (hub.hub.audit.writer, 4)
        assert fault.reason
