"""`toolhub audit verify --file`: lines of archives and exports of a real log, whole and tampered with."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.ports.audit_log_suite import called
from tests.unit.stores.audit.logs_in import WallClock
from toolhub_service.cli.root import toolhub
from toolhub_service.guards.secrets import Redactor
from toolhub_service.stores.audit.export import Export, FileSink
from toolhub_service.stores.audit.log import SqliteAuditLog
from toolhub_service.stores.audit.retention import EventArchive


class SilentObserver:
    def on_export(self, sink: str, events: int, refused: int) -> None: ...
    def backlog(self, sink: str, events: int) -> None: ...
    def begins_anew(self, sink: str) -> None: ...


@dataclass(frozen=True)
class ExportedLog:
    """A data folder of two runs, of 30 events each, whose first 20 have moved to an archive; all were exported."""

    data_dir: Path
    archive: list[str]
    exported: list[str]

    def verified(self, lines: list[str] | list[list[str]], *options: str) -> tuple[int, dict[str, Any]]:
        """The exit code, and what was printed as JSON, for a file or several."""
        files = lines if isinstance(lines[0], list) else [lines]
        places = []
        for number, each in enumerate(files):
            place = self.data_dir.parent / f"{number}.jsonl"
            place.write_text("".join(each))
            places.append(str(place))
        words = ["audit", "verify", "-o", "json", *options, "--file", *places]
        ran = CliRunner().invoke(toolhub, words, env={"TOOLHUB_DATA_DIR": str(self.data_dir)})
        assert isinstance(ran.exception, SystemExit | None), repr(ran.exception)
        return ran.exit_code, json.loads(ran.stdout)

    @property
    def live(self) -> tuple[str, str]:
        return "--data-dir", str(self.data_dir)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> ExportedLog:
    folder = tmp_path_factory.mktemp("kept")
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700)

    async def run() -> None:
        files = data_dir / "audit.db", data_dir / "audit-checkpoints.jsonl", data_dir / "audit.key"
        for _ in range(2):
            log = SqliteAuditLog(*files, clock=WallClock(), redactor=Redactor())
            await log.start()
            for number in range(1, 31):
                log.append(called(number))
            await log.flush()
            export = Export(log.events, FileSink(folder / "export.jsonl", 1 << 30), SilentObserver())
            await asyncio.to_thread(export.step)
            await log.close()
        log = SqliteAuditLog(*files, clock=WallClock(), redactor=Redactor())
        await log.start()
        assert await asyncio.to_thread(log.prune, 21, archive=EventArchive(folder / "archive")) == 40
        await log.close()

    asyncio.run(run())
    (archive,) = (folder / "archive").iterdir()
    return ExportedLog(
        data_dir,
        archive.read_text().splitlines(keepends=True),
        (folder / "export.jsonl").read_text().splitlines(keepends=True),
    )


@pytest.mark.promise("audit.lines-verify")
def test_exported_and_archived_logs_verify_in_any_order_and_twice(kept: ExportedLog) -> None:
    assert kept.verified(kept.exported) == (
        0,
        {"ok": True, "eventsChecked": "60", "writersChecked": 2, "repeated_lines": 0},
    )
    shuffled = [kept.exported[45:], kept.exported[10:50], kept.exported[:10], kept.archive]
    code, report = kept.verified(shuffled, *kept.live)
    assert (code, report["eventsChecked"], report["repeated_lines"]) == (0, "60", 45), report
    code, report = kept.verified(kept.archive, *kept.live)
    assert (code, report["eventsChecked"]) == (0, "40"), report
    code, report = kept.verified([*kept.archive, '{"writer": "half a li'], *kept.live)
    assert code == 0, report
    every_line = list(kept.exported)
    random.Random(7).shuffle(every_line)
    assert kept.verified(every_line)[0] == 0
    spelt_anew = [json.dumps(json.loads(line), indent=None) + "\n" for line in kept.exported]
    assert kept.verified(spelt_anew)[0] == 0, "a shipper of logs may write the JSON anew"


def test_a_part_is_whole_in_itself_where_that_is_asked_for(kept: ExportedLog) -> None:
    part = kept.exported[5:25]
    code, report = kept.verified(part)
    assert (code, report["faults"][0]["reason"]) == (1, "events 1 to 5 are in none of the files")
    assert kept.verified(part, "--part")[0] == 0
    checkpoints = str(kept.data_dir / "audit-checkpoints.jsonl")
    assert kept.verified(kept.exported, "--checkpoints", checkpoints)[0] == 0
    code, report = kept.verified(kept.exported[:-3], "--checkpoints", checkpoints)
    assert (code, report["faults"][0]["reason"]) == (1, "events 28 to 30 are in none of the files")
    assert kept.verified(kept.exported[:-3])[0] == 0, "of a cut end a chain alone knows nothing"


def _with(line: str, **changed: Any) -> str:
    return json.dumps({**json.loads(line), **changed}) + "\n"


def _event(line: str, **changed: Any) -> str:
    return _with(line, event={**json.loads(line)["event"], **changed})


def _said_twice(line: str, name: str) -> str:
    """Readers differ in which of two members of one name they show."""
    forged = {"event": '{"principal": "nobody"}', "principal": '"nobody"'}[name]
    return line.replace(f'"{name}":', f'"{name}":{forged},"{name}":', 1)


TAMPERED: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "an edit": (lambda it: [*it[:7], _event(it[7], principal="nobody"), *it[8:]], "the tag does not fit"),
    "a field more": (lambda it: [*it[:7], _event(it[7], more=1), *it[8:]], "the tag does not fit"),
    "a member twice": (lambda it: [*it[:7], _said_twice(it[7], "principal"), *it[8:]], "a name twice"),
    "an event twice": (lambda it: [*it[:7], _said_twice(it[7], "event"), *it[8:]], "a name twice"),
    "a deep event": (
        lambda it: [*it, it[7].replace('"event":', '"more":' + "[" * 9_999 + "]" * 9_999 + ',"event":', 1)],
        "is no line",
    ),
    "a removal": (lambda it: it[:7] + it[8:], "events 8 to 8 are in none"),
    "a cut start": (lambda it: it[3:], "events 1 to 3 are in none"),
    "another place": (lambda it: [*it[:7], _with(it[7], sequence=99), *it[8:]], "the tag does not fit"),
    "another chain": (lambda it: [*it[:7], _with(it[7], writer="w"), *it[8:]], "the tag does not fit"),
    "another key": (lambda it: [*it[:7], _with(it[7], key_id="0" * 12), *it[8:]], "key it was sealed with is unknown"),
    "no line": (lambda it: [*it, "what is this\n"], "is no line of an archive"),
    "a line of another kind": (lambda it: [*it, '{"writer": 1}\n'], "is no line of an archive"),
    "an event that is none": (lambda it: [*it[:7], _with(it[7], event="text"), *it[8:]], "the tag does not fit"),
    "no number": (lambda it: [*it[:7], _with(it[7], sequence=0), *it[8:]], "there is no such sequence"),
    "a line without end": (lambda it: [*it, "x" * (4 << 20) + "\n"], "is longer than"),
}


@pytest.mark.promise("audit.lines-verify")
def test_any_change_in_a_file_is_named_with_the_first_bad_event(kept: ExportedLog) -> None:
    for name, (tamper, reason) in TAMPERED.items():
        code, report = kept.verified(tamper(kept.exported))
        assert (code, report["ok"]) == (1, False), name
        assert any(reason in fault["reason"] for fault in report["faults"]), (name, report)


def test_line_that_is_none_is_no_event_of_a_chain(kept: ExportedLog) -> None:
    _, report = kept.verified([*kept.exported, "no line\n"])
    (fault,) = report["faults"]
    assert fault.keys() == {"reason"}, "neither a writer nor a sequence"


@pytest.mark.promise("audit.lines-verify")
def test_the_files_must_reach_to_where_the_log_goes_on(kept: ExportedLog) -> None:
    first = [line for line in kept.archive if json.loads(line)["writer"] == json.loads(kept.archive[0])["writer"]]
    code, report = kept.verified(first[:15], *kept.live)
    assert (code, len(report["faults"])) == (1, 2), report
    reasons = {fault["reason"] for fault in report["faults"]}
    assert reasons == {
        "events 16 to 20 are in none of the files, nor in the log",
        "events 1 to 20 are in none of the files, nor in the log",
    }
    assert kept.verified(first[:15], "--part", *kept.live)[0] == 0


def test_a_missing_argument_is_asked_for(kept: ExportedLog, tmp_path: Path) -> None:
    def message_of(*words: str) -> str:
        ran = CliRunner().invoke(toolhub, ["audit", "verify", *words], env={"TOOLHUB_DATA_DIR": str(tmp_path)})
        assert ran.exit_code in (1, 2)
        return ran.output

    line = tmp_path / "line.jsonl"
    line.write_text(kept.exported[0])
    assert "--audit-key names" in message_of("--file", str(line))
    assert "No such file" in message_of(
        "--file", str(tmp_path / "none"), "--audit-key", str(kept.data_dir / "audit.key")
    )
    assert "belong to --file" in message_of("--part")
    line.write_text("")
    assert "nothing was verified" in message_of("--file", str(line), "--audit-key", str(kept.data_dir / "audit.key"))


def test_lines_exported_by_the_command_are_verified_as_well(kept: ExportedLog, tmp_path: Path) -> None:
    ran = CliRunner().invoke(toolhub, ["audit", "export", "--as", "lines", *kept.live])
    lines = ran.stdout.splitlines(keepends=True)
    assert sorted([*lines, *kept.archive]) == sorted(kept.exported)
    assert kept.verified(lines, "--part", *kept.live)[0] == 0
    printed = CliRunner().invoke(toolhub, ["audit", "export", *kept.live]).stdout.splitlines(keepends=True)
    assert "--as lines" in kept.verified(printed)[1]["faults"][0]["reason"]
    assert "--data-dir" in CliRunner().invoke(toolhub, ["audit", "export", "--as", "lines"]).output
