"""What commands need of a hub that is not running: its audit files, tools and policy."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import IO

from toolhub_service.app.config_files.editing import lock_for_edit
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.policy_files import configured_sources, known_names
from toolhub_service.app.wiring.audit import audit_log_of
from toolhub_service.app.wiring.deps import SystemClock
from toolhub_service.app.wiring.tools import Toolbox, open_toolbox
from toolhub_service.domain.call import Call, ExecContext, PlannedCall, Principal
from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.event import ChainedEvent, Event, EventFilter, EventType, Verification
from toolhub_service.domain.job import Job, JobFilter
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.guards.secrets import Redactor
from toolhub_service.policy.advice.missing_arguments import find_missing_arguments
from toolhub_service.policy.advice.unmatched_names import find_unmatched_names
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.explain import Explanation, explain
from toolhub_service.policy.parsing import invalid, parse_policy
from toolhub_service.runtime.route import resolve
from toolhub_service.runtime.steps import apply_defaults, validate_input
from toolhub_service.schema.tool_schemas import for_tool
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import known_secrets, load_settings
from toolhub_service.stores.audit.checkpoint import read_lines
from toolhub_service.stores.audit.events import page_of
from toolhub_service.stores.audit.keyring import open_keyring, rotate
from toolhub_service.stores.audit.sqlite import SqliteEvents
from toolhub_service.stores.audit.verify import Claims, verify_log
from toolhub_service.stores.audit.verify_lines import LINE_MAX_BYTES, LineChains, LinesVerified, Live

_PAGE = 1_000
_GONE = "Restore both from a backup; where that cannot be, `toolhub audit begin` begins a new log and records it."


class OfflineRefused(Exception):
    """The files to read are missing or unreadable; the message says why and what to do."""


def verify_audit(settings: Settings) -> Verification:
    """Check the audit log of a hub, whether it runs or not. Writes nothing. Raises OfflineRefused."""
    paths = Paths(settings)
    if not paths.audit.exists() and not paths.audit_checkpoints.exists():
        if paths.audit_key.exists() and not settings.stores.postgres_url:
            raise OfflineRefused(
                f"{paths.audit} and {paths.audit_checkpoints} are gone, yet {paths.audit_key} is there. {_GONE}"
            )
        raise OfflineRefused(f"There is no audit log at {paths.audit}. --data-dir names the folder that the hub keeps.")
    if settings.stores.postgres_url or not paths.audit.exists():
        # Otherwise each chain that the checkpoints attest would be reported as removed.
        raise OfflineRefused(
            f"{paths.audit_checkpoints} attests events, and {paths.audit} does not hold them. With stores.postgres_url "
            "they are in PostgreSQL: ask the running hub, with `toolhub audit verify` without --data-dir. Without it, "
            f"{paths.audit} is gone. {_GONE}"
        )
    try:
        keyring = open_keyring(paths.audit_key, create=False)
        return verify_log(paths.audit, paths.audit_checkpoints, keyring)
    except HubFailure as unusable:
        raise OfflineRefused(unusable.message) from unusable
    except OSError as unreadable:
        raise OfflineRefused(f"{unreadable.filename or paths.audit}: {unreadable.strerror}") from unreadable


# Verification of events that left the log, from their files.

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class ReferenceFiles:
    """The files to verify the lines against."""

    log: Settings | None
    """The hub whose log continues where the lines end; None: only the lines are verified."""
    audit_key: Path | None
    """None: the data folder's."""
    checkpoints: Path | None


def verify_lines(files: Sequence[Path], against: ReferenceFiles, *, is_part: bool) -> LinesVerified:
    """Verify lines; writes nothing, and keeps only the ends of each chain in memory. Raises OfflineRefused."""
    given = against.log or load_settings(None, os.environ)
    paths = Paths(given)
    log = Verification(0, 0) if against.log is None else verify_audit(given)
    try:
        keyring = open_keyring(against.audit_key or _own_key(paths), create=False)
        claims = Claims(keyring)
        if against.checkpoints is not None:
            against.checkpoints.stat()
            claims.add_file(read_lines(against.checkpoints))
        live = None
        if against.log is not None:
            claims.add_file(read_lines(paths.audit_checkpoints))
            live = _live(SqliteEvents(paths.audit))
        chains = LineChains(keyring, claims, live)
        for file in files:
            if str(file) == _STDIN:
                _take(sys.stdin.buffer, "standard input", chains)
                continue
            with file.open("rb") as opened:
                _take(opened, file.name, chains)
    except HubFailure as unusable:
        raise OfflineRefused(unusable.message) from unusable
    except OSError as unreadable:
        raise OfflineRefused(f"{unreadable.filename}: {unreadable.strerror}") from unreadable
    return _with_faults(log, chains.finish(is_part=is_part))


def _own_key(paths: Paths) -> Path:
    if not paths.audit_key.exists():
        raise OfflineRefused(
            f"There is no {paths.audit_key}. --audit-key names the audit.key of the hub that wrote the lines, and "
            "--data-dir the folder that it keeps."
        )
    return paths.audit_key


def _live(events: SqliteEvents) -> dict[str, Live]:
    """Return where each writer's chain in the log begins now."""
    live: dict[str, Live] = {}
    with closing(events.open(create=False)) as table:
        for writer, _ in table.ends():
            for row in table.beyond(writer, 0):
                live[writer] = Live(row[1], row[9])
                break
    return live


def _take(file: IO[bytes], name: str, chains: LineChains) -> None:
    """Pass the lines to `chains`. A last line without its end is skipped: a crash cut it, or it is being written, and
    its event comes again."""
    number = 0
    while line := file.readline(LINE_MAX_BYTES):
        number += 1
        if line.endswith(b"\n"):
            if line.strip():
                chains.take(line, f"{name}, line {number}")
        elif len(line) == LINE_MAX_BYTES:
            chains.too_long(f"{name}, line {number}")
            return


def _with_faults(log: Verification, found: LinesVerified) -> LinesVerified:
    """Return what was found in the lines, with the faults of the log: one of each writer."""
    lines = found.verification
    by_writer = {fault.writer: fault for fault in (*lines.faults, *log.faults)}
    faults = tuple(by_writer[writer] for writer in sorted(by_writer))
    return replace(found, verification=Verification(lines.events_checked, lines.writers, faults))


async def begin_audit(settings: Settings, reason: str) -> None:
    """Begin a new log with the key of one that is gone or was moved away; its first event records that and the reason.

    Raises OfflineRefused while the files of the old log, or a hub that writes them, are still there.
    """
    paths, clock = Paths(settings), SystemClock()
    files = [paths.audit_checkpoints] if settings.stores.postgres_url else [paths.audit, paths.audit_checkpoints]
    for file in files:
        if file.exists():
            raise OfflineRefused(f"{file} is still there. Stop the hub, and move the log's files away to keep them.")
    redactor = Redactor(known_secrets(settings, os.environ))
    try:
        log = audit_log_of(settings, clock=clock, redactor=redactor, name="begin", begin=True)
        await log.start()
        facts = {"audit_log": "begun anew", "reason": reason}
        await log.append_durably(Event(EventType.CONFIG_LOADED, clock.unix_ms(), outcome="ok", attributes=facts))
        await log.close()
    except HubFailure as unusable:
        raise OfflineRefused(unusable.message) from unusable
    except ToolFailure as unwritable:
        raise OfflineRefused("The audit log cannot be written.") from unwritable


def rotate_audit_key(settings: Settings) -> str:
    """Add a key to the audit log's and return its id. The old ones stay to verify what they signed.

    Raises OfflineRefused.
    """
    try:
        path = Paths(settings).audit_key
        # A lock beside a missing key would make its folder, which would then look like an existing one.
        with lock_for_edit(path) if path.exists() else nullcontext():
            return rotate(path).active_id
    except HubFailure as unusable:
        raise OfflineRefused(unusable.message) from unusable
    except OSError as unreadable:
        raise OfflineRefused(f"{unreadable.filename}: {unreadable.strerror}") from unreadable


def audit_events(settings: Settings, where: EventFilter) -> Iterator[ChainedEvent]:
    """Yield every matching event, oldest first, of a hub that need not be running. Raises OfflineRefused."""
    file = Paths(settings).audit
    if settings.stores.postgres_url:
        raise OfflineRefused("The audit log is in PostgreSQL (stores.postgres_url), not in files: ask the running hub.")
    if not file.exists():
        raise OfflineRefused(f"There is no audit log at {file}. --data-dir names the folder that the hub keeps.")
    events = SqliteEvents(file, only_looks=True)
    after: tuple[int, str, int] | None = None
    try:
        while found := page_of(events, where, after, _PAGE):
            yield from found
            after = (found[-1].event.at_unix_ms, found[-1].writer, found[-1].sequence)
    except HubFailure as damaged:
        raise OfflineRefused(damaged.message) from damaged
    except events.errors as unreadable:
        raise OfflineRefused(f"{file}: {unreadable}") from unreadable


async def configured_tools(settings: Settings) -> list[ToolSpec]:
    """Return every tool that a hub with these settings would offer, in any state. Raises ToolFailure."""
    toolbox = _toolbox(settings)
    try:
        return list(toolbox.catalog.all())
    finally:
        await toolbox.close()


def policy_of(file: Path | None) -> PolicySnapshot:
    """Return the policy of a file, or the starter policy without one. Raises InvalidPolicy, OfflineRefused."""
    if file is None:
        return PolicySnapshot()
    try:
        return PolicySnapshot.load(file.read_text(encoding="utf-8"))
    except OSError as unreadable:
        raise OfflineRefused(f"{file}: {unreadable.strerror}") from unreadable
    except UnicodeDecodeError as binary:
        raise OfflineRefused(f"{file} is not UTF-8 text") from binary


def policy_warnings(settings: Settings, file: Path | None) -> list[str]:
    """Return what a valid policy probably does not mean, with lines: names that match no tool, capability or principal
    of this machine, and arguments that a rule's tools do not have."""
    if file is None:
        return []
    document, lines = parse_policy(file.read_text(encoding="utf-8"))
    tools = asyncio.run(configured_tools(settings))
    problems = (*find_unmatched_names(document, known_names(settings, tools)), *find_missing_arguments(document, tools))
    return [str(invalid(problem, f"$.{path}", lines)) for path, problem in problems]


def policy_file_of(settings: Settings) -> Path | None:
    """Return the policy file that a hub with these settings would read; None for the starter policy.

    A named file must exist; the one in the data folder may.
    """
    path = Paths(settings).policy
    return path if settings.policy.file or path.exists() else None


async def explain_call(
    settings: Settings,
    policy: PolicySnapshot,
    caller: Principal,
    tool: str,
    args: Mapping[str, JsonValue],
    *,
    user_id: str = "",
) -> Explanation:
    """Return why the policy would give a call its verdict. `caller`: as a credential would describe it.

    Raises ToolFailure when the call would fail before the policy, OfflineRefused for a tool of a source.
    """
    toolbox = _toolbox(settings)
    try:
        _check_is_local(tool, toolbox, Paths(settings))
        who, context = policy.apply_to_principal(caller), ExecContext(user_id=user_id)
        call = Call("explained", tool, dict(args), who, context, purpose="explain the policy")
        # A tool of another tenant's source is found, too, so that the entry that hides it can be named.
        planned = _plan_call(call._replace(principal=replace(who, tenancy=None)), toolbox, policy)
        return explain(policy, planned._replace(call=planned.call._replace(principal=who)))
    finally:
        await toolbox.close()


def _check_is_local(tool: str, toolbox: Toolbox, paths: Paths) -> None:
    """Raise OfflineRefused for a tool of a source: only a running hub has read them."""
    namespace, slash, _ = tool.partition("/")
    known = {spec.name.partition("/")[0] for spec in toolbox.catalog.all()}
    if not slash or namespace in known:
        return
    if get_close_matches(namespace, known) and namespace not in configured_sources(paths):
        return  # a misspelt name, for which the nearest is suggested
    raise OfflineRefused(
        f"`toolhub policy explain` knows only the built-in and custom tools of this machine, and {tool!r} is neither. "
        f"A running hub knows the tools of sources: `toolhub tools show {tool}` says what a caller needs for it."
    )


def _plan_call(call: Call, toolbox: Toolbox, policy: PolicySnapshot) -> PlannedCall:
    """Run the first three steps of the pipeline."""
    spec = resolve(call, toolbox.catalog, policy)
    schemas = for_tool(spec)
    validate_input(call, spec, schemas, toolbox.adapter)
    return apply_defaults(call._replace(tool=spec.name), spec, schemas)


def _toolbox(settings: Settings) -> Toolbox:
    return open_toolbox(settings, SystemClock(), Redactor(), NoJobs())


class NoJobs:
    """Stands in for the jobs of a running hub: offline, tools are inspected and never called."""

    async def get(self, principal: Principal, job_id: str) -> Job:
        raise OfflineRefused("a running hub knows its jobs")

    async def page(
        self, principal: Principal, where: JobFilter, *, after: tuple[int, str] | None, limit: int
    ) -> tuple[Sequence[Job], int]:
        raise OfflineRefused("a running hub knows its jobs")

    async def cancel(self, principal: Principal, job_id: str, reason: str) -> Job:
        raise OfflineRefused("jobs are cancelled by a running hub")
