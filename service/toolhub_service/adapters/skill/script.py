"""Mode `script`: one program of a skill, in a sandbox, from its arguments to its result.

It runs on a copy of the tree that is verified against the pinned digest: changed files are refused. It has

    working folder, read only    the skill
    standard input               the arguments, one JSON object; an artifact among them is the path of a file
    $TOOLHUB_OUTPUT              an empty folder: files left there become artifacts
    $TMPDIR, $HOME               for itself, gone afterwards
    $TOOLHUB_CALLS, `tool`, `toolhub_tools`    calls of the tools that it may use, through a descriptor

and no network, no other file of the machine, and only its own environment. It succeeds when its exit code is 0,
standard output is one JSON value and the required artifacts exist; step 7 checks the output schema. All other output is
data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolhub_service.adapters.skill.call_door import CallDoor, MadeCall
from toolhub_service.adapters.skill.manifest import PYTHON, SHELL
from toolhub_service.adapters.skill.runnable import Runnable
from toolhub_service.adapters.skill.script_files import Kept, keep_output, put_artifacts
from toolhub_service.adapters.skill.tree import copy_tree
from toolhub_service.adapters.upstream import quote_foreign
from toolhub_service.domain.artifact import ArtifactRef, ArtifactService
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Upstream, refuse
from toolhub_service.domain.json import JsonValue
from toolhub_service.domain.ports import EventSink, InnerCalls
from toolhub_service.domain.result import Chunk
from toolhub_service.domain.storage import disk_full
from toolhub_service.guards.commands.safe import SYSTEM_FOLDERS
from toolhub_service.guards.secrets import Redact
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.process import Finished, run_process
from toolhub_service.sandbox.request import Bounds, Level, SandboxRequest, too_weak, wanted_level
from toolhub_service.sandbox.script_python import Interpreter
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.schema.repaired_json import Repaired, loads_repaired
from toolhub_service.tools.disk_space.disk_room import DiskRoom
from toolhub_service.tools.disk_space.growth import growth_of_run
from toolhub_service.tools.workspace.disk_errors import DISK_FULL

_SHELL: Final = "/bin/sh"
_CLIENT: Final = Path(__file__).with_name("toolhub_tools.py")
_EXCERPT_CHARS: Final = 2_000
_OPEN_FILES: Final = 256
_FILES_MAX: Final = 16
"""How many files of the largest size all that a program writes may amount to."""
# Share of the remaining time, at most `_RESERVE_S`, reserved for ending the program and storing its results.
_RESERVE: Final = 0.1
_RESERVE_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """The result of a successful run."""

    value: JsonValue
    argv: Sequence[str]
    """As in the sidecar."""
    interpreter: str
    finished: Finished
    confinement: Mapping[str, str]
    artifacts: tuple[ArtifactRef, ...]
    calls: Sequence[MadeCall]
    repairs: tuple[str, ...] = ()
    """What was repaired in the JSON of its result."""


@dataclass(frozen=True, slots=True)
class ScriptParts:
    """What all runs of a hub share."""

    ladder: Ladder
    artifacts: ArtifactService
    redact: Redact


class Script:
    """One run. `calls` are narrowed to what the skill may use; None: it makes none."""

    def __init__(
        self,
        parts: ScriptParts,
        made: Runnable,
        call: GrantedCall,
        sink: EventSink,
        interpreter: Interpreter,
        calls: InnerCalls | None,
    ) -> None:
        self._parts = parts
        self._made = made
        self._call = call
        self._sink = sink
        self._interpreter = interpreter
        self._reported_bytes = 0
        limits = made.manifest.limits
        self._door: CallDoor | None = None
        if calls is not None:
            purpose = f"skill {made.skill.name}"
            self._door = CallDoor(calls, purpose, limits.parallel_calls)

    async def run(self) -> ScriptRun:
        """Run the program. Raises ToolFailure, and TreeChanged for files that do not match the digest; when cancelled,
        it ends everything."""
        async with self._folder() as folder:
            await self._copy(folder / "skill")
            given = await self._prepare(folder)
            request = self._request(folder, await self._parts.ladder.level())
            try:
                finished, confinement = await self._ran(request, given)
            finally:
                if self._door is not None:
                    await asyncio.shield(self._door.close())
            read = self._read_result(finished)
            kept = await keep_output(folder / "out", self._made.manifest, self._parts.artifacts, self._call.call)
            return self._result_of(read, finished, confinement, kept)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[Path]:
        held = self._parts.ladder.run_folder()
        try:
            folder = Path(held.__enter__())
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_full() from None
            raise refuse(ErrorKind.IO_ERROR, "No folder could be made for the run. An operator must look.") from None
        try:
            yield folder
        finally:
            # In a thread, because a program may leave very many files.
            await asyncio.shield(asyncio.to_thread(held.__exit__, None, None, None))

    async def _copy(self, target: Path) -> None:
        """Raises TreeChanged for files that do not match the digest, and ToolFailure."""
        skill = self._made.skill
        try:
            await asyncio.to_thread(copy_tree, skill.folder, skill.tree, target)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise disk_full() from None
            message = f"The files of the skill {skill.name} cannot be read now. Use another tool, or ask an operator."
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, message) from None

    async def _prepare(self, folder: Path) -> bytes:
        """Create what the program gets beside the skill. Return its standard input."""
        ladder, manifest = self._parts.ladder, self._made.manifest
        for name in ("out", "tmp"):
            (folder / name).mkdir(mode=0o700)
            ladder.hand_over(str(folder / name))
        (folder / "in").mkdir(mode=0o755)
        args = await put_artifacts(
            folder / "in", manifest, self._call.args, self._parts.artifacts, self._call.call.principal.id
        )
        if self._door is not None:
            self._put_client(folder / "bin")
        return dumps(args) + b"\n"

    def _put_client(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        client = folder / _CLIENT.name
        client.write_bytes(_CLIENT.read_bytes())
        client.chmod(0o644)
        command = folder / "tool"
        command.write_text(f"#!{_SHELL}\nexec '{self._interpreter.path}' -I '{client}' \"$@\"\n", encoding="utf-8")
        command.chmod(0o755)

    def _request(self, folder: Path, level: Level | None) -> SandboxRequest:
        entry, limits = self._made.manifest.entry, self._made.manifest.limits
        assert entry is not None
        first, *rest = entry.argv
        program = {PYTHON: self._interpreter.path, SHELL: _SHELL}.get(first, str(folder / "skill" / first))
        # Inside bubblewrap /tmp is the program's own, in memory and of limited size.
        own = "/tmp" if level == "bubblewrap" else str(folder / "tmp")  # noqa: S108
        environment = {
            "LANG": "C.UTF-8",
            "PATH": f"{folder}/bin:{SYSTEM_FOLDERS}",
            "HOME": own,
            "TMPDIR": own,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(folder / "bin"),
            **entry.env,
            "TOOLHUB_OUTPUT": str(folder / "out"),
            "TOOLHUB_INPUT": str(folder / "in"),
        }
        reads = [str(folder / "skill"), str(folder / "in"), *self._interpreter.reads]
        descriptors: tuple[int, ...] = ()
        if self._door is not None:
            reads.append(str(folder / "bin"))
            descriptors = (self._door.open(),)
            environment |= {"TOOLHUB_CALLS": str(descriptors[0])}
        return SandboxRequest(
            argv=(program, *rest),
            environment=environment,
            folder=str(folder / "skill"),
            reads=reads,
            writes=(str(folder / "out"), str(folder / "tmp")),
            descriptors=descriptors,
            bounds=Bounds(limits.cpu_s, limits.memory_bytes, limits.file_bytes, limits.processes, _OPEN_FILES),
            has_input=True,
        )

    async def _ran(self, request: SandboxRequest, given: bytes) -> tuple[Finished, Mapping[str, str]]:
        limits = self._made.manifest.limits
        ladder, tool = self._parts.ladder, self._call.spec.name
        wanted = wanted_level(tool, self._call.verdict.constraints.sandbox)
        if refusal := too_weak(tool, await ladder.level(), wanted):
            raise refusal
        growth = growth_of_run(
            [*request.writes],
            DiskRoom(request.writes[0], ladder.reserve_bytes),
            max_bytes=limits.file_bytes * _FILES_MAX,
        )
        try:
            async with ladder.confine(request) as confined:
                finished = await run_process(
                    replace(confined.program, ends_strays=True),
                    deadline_s=self._deadline_s(),
                    keep_bytes=max(limits.stdout_bytes, limits.stderr_bytes),
                    on_output=self._on_output,
                    given=given,
                    on_start=self._on_start,
                    stop_when=growth.watch,
                )
                if (failure := await growth.find_failure()) is not None:
                    raise failure
                return finished, confined.evidence
        except OSError:
            message = "The program of the skill could not be started. An operator must look at the hub's machine."
            raise refuse(ErrorKind.EXECUTION_ERROR, message) from None

    def _on_start(self, _pid: int) -> None:
        if self._door is not None:
            self._door.close_hub_copy()

    def _deadline_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        left_s = max(0.0, self._call.deadline_s - now_s)
        return now_s + min(self._made.manifest.limits.timeout_s, left_s - min(_RESERVE_S, left_s * _RESERVE))

    def _on_output(self, lines: bytes, stream: str) -> None:
        """Pass standard error on as it arrives; standard output is the result."""
        if stream == "stderr" and self._reported_bytes < self._made.manifest.limits.stderr_bytes:
            self._reported_bytes += len(lines)
            self._sink.chunk(Chunk(data=lines, stream=stream))

    def _read_result(self, finished: Finished) -> Repaired:
        """Return the result. Raises ToolFailure when the program has not succeeded, whatever it reports."""
        name, limits = self._made.skill.name, self._made.manifest.limits
        if finished.timed_out or finished.flooded or finished.exit_code != 0:
            raise self._run_failure(finished)
        if finished.stdout.total_bytes > limits.stdout_bytes:
            message = (
                f"The skill {name} wrote {finished.stdout.total_bytes:,} bytes of result; `limits.stdout_bytes` is "
                f"{limits.stdout_bytes:,}. Ask for less, or let it leave a file as an artifact."
            )
            raise refuse(ErrorKind.EXECUTION_ERROR, message, limit_bytes=limits.stdout_bytes)
        try:
            return loads_repaired(bytes(finished.stdout.kept), max_bytes=limits.stdout_bytes)
        except ToolFailure:
            message = (
                f"The skill {name} ended well, but its standard output is not one JSON value. Its author must write "
                "the result there and nothing else; what is for people belongs on standard error."
            )
            shown = self._excerpt(finished.stdout.kept)
            raise refuse(ErrorKind.EXECUTION_ERROR, message, stdout=shown) from None

    def _run_failure(self, finished: Finished) -> ToolFailure:
        name, seconds, shown = self._made.skill.name, round(finished.duration_s, 1), self._excerpt(finished.stderr.kept)
        if finished.timed_out:
            message = (
                f"The skill {name} did not end within {seconds} s and was killed with all that it started. What its "
                "calls did until then is not undone. Give it less to do, or call with a later deadline."
            )
            return refuse(ErrorKind.TIMEOUT, message, duration_s=seconds, stderr=shown)
        if finished.flooded:
            message = f"The skill {name} wrote without end and was killed. Use another tool, or tell its author."
            return refuse(ErrorKind.EXECUTION_ERROR, message, duration_s=seconds, stderr=shown)
        code = finished.exit_code
        how = f"signal {code - 128}" if code > 128 else f"exit code {code}"  # as a shell reports it
        message = f"The skill {name} failed with {how}. Change the arguments as its words say, or use another tool."
        return refuse(
            ErrorKind.EXECUTION_ERROR,
            message,
            duration_s=seconds,
            stderr=shown,
            upstream=Upstream(code, shown),
        )

    def _excerpt(self, data: bytearray) -> str:
        return quote_foreign(
            bytes(data[-4 * _EXCERPT_CHARS :]).decode("utf-8", "replace"), self._parts.redact, _EXCERPT_CHARS
        )

    def _result_of(self, read: Repaired, finished: Finished, confinement: Mapping[str, str], kept: Kept) -> ScriptRun:
        entry, door = self._made.manifest.entry, self._door
        assert entry is not None
        return ScriptRun(
            value=read.value,
            repairs=read.remarks,
            argv=entry.argv,
            interpreter=self._interpreter.version,
            finished=finished,
            confinement=confinement,
            artifacts=kept,
            calls=() if door is None else tuple(door.made),
        )
