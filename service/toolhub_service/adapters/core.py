"""Step 6 for built-in and custom tools: from a granted call to `Tool.run` and back.

The schema has validated the arguments; here they become the tool's typed input. The tool gets a context of its own,
which is closed however the call ends. An exception that the tool does not foresee is reported as INTERNAL without its
text; the log gets it as `__cause__`. Cancellation always propagates.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from toolhub_service.adapters.decide_statement import decide_statement
from toolhub_service.adapters.upstream import is_cancelled, not_loaded, suspension_in, tool_failed
from toolhub_service.aio.cooperative import in_thread
from toolhub_service.aio.threads import to_thread
from toolhub_service.domain.artifact import ArtifactService
from toolhub_service.domain.call import (
    NO_PRECONDITIONS,
    Call,
    GrantedCall,
    PlannedCall,
    Preconditions,
    QuestionAsked,
    Suspended,
)
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, Violation, refuse
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import NOTHING_FIXED, EventSink, FixedTerms, InnerCalls, PolicySource
from toolhub_service.domain.result import SILENT, Outcome
from toolhub_service.domain.tool import EXECUTE_COMMAND, READ_FS, WRITE_FS, ArgumentRole, ToolKind, ToolSpec
from toolhub_service.egress.hiding import mask_failure, mask_outcome
from toolhub_service.guards.paths import check_path, workspace_folder_name
from toolhub_service.schema.canonical_json import digest
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.disk_space.workspace_usage import WorkspaceAccount, WorkspaceUsage
from toolhub_service.tools.tool import Tool, ToolInput, spec_of
from toolhub_service.tools.workspace.workspace import Workspace

# The folder of a call is `<root>/<principal>/<request_id>/` unless configured otherwise.

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NEW = "%new"  # no id has this folder name: in them, `%` is followed by two digits, `~` or nothing


class WorkspaceSharing(Enum):
    """Which calls see the same files."""

    REQUEST = "request"
    """Calls of one principal with one request_id."""
    SESSION = "session"
    """Calls of one principal with one session_id; a call without one uses the folder of its request."""
    PRINCIPAL = "principal"
    SHARED = "shared"
    """All calls of all principals."""


class Workspaces(msgspec.Struct, frozen=True):
    """Maps calls to folders beneath `root`. Ids of any characters are safe: each becomes one folder name."""

    root: str
    sharing: WorkspaceSharing = WorkspaceSharing.REQUEST
    keep_s: float = 0.0
    """Seconds between the last change in a folder of a request or session and its removal; 0: never remove it."""
    usage: WorkspaceUsage | None = None
    """Counts and bounds what the callers have there; None: nothing does."""

    async def sweep(self, now_unix_ms: int) -> int:
        """Remove the folders of requests and sessions that have not changed for `keep_s`. Return how many."""
        if not self.keep_s or self.sharing not in (WorkspaceSharing.REQUEST, WorkspaceSharing.SESSION):
            return 0
        return await to_thread(partial(self._sweep, now_unix_ms / 1_000 - self.keep_s))

    def folders(self, call: Call) -> tuple[str, ...]:
        """Return the names of the folders beneath the root, outermost first."""
        if self.sharing is WorkspaceSharing.SHARED:
            return ()
        principal = workspace_folder_name(call.principal.id)
        if self.sharing is WorkspaceSharing.PRINCIPAL:
            return (principal,)
        work = call.context.request_id
        if self.sharing is WorkspaceSharing.SESSION:
            work = call.context.session_id or work
        return principal, workspace_folder_name(work)

    def identity(self, call: Call) -> str:
        """Return a name of the call's folder that does not depend on the root. A call without a request_id gets a new
        folder each time; all of these have the same name as long as they are empty."""
        folders = self.folders(call)
        if self._is_new(call) and self._is_empty(folders):
            folders = (*folders[:-1], _NEW)
        return "/".join((self.sharing.value, *folders))

    def open(self, call: Call, expected: Mapping[str, str] = _NOTHING) -> Workspace:
        """Open the call's folder, created when missing; `expected`: see `Workspace`. Raises ToolFailure as it does."""
        folders = self.folders(call)
        return Workspace(self.root, *folders, expected=expected, account=self._account(call.principal.id, folders))

    def _account(self, principal: str, folders: tuple[str, ...]) -> WorkspaceAccount | None:
        return None if self.usage is None else self.usage.account(principal, folders[0] if folders else "")

    def _sweep(self, before_s: float, stop: threading.Event) -> int:
        swept = 0
        for principal in _folders_of(self.root):
            for folder in _folders_of(principal.path):
                if _changed_at_s(folder.path, before_s) >= before_s:
                    continue
                # Other processes remove the same folders.
                account = self._account("", (principal.name,))
                opened = Workspace(self.root, principal.name, account=account)
                with closing(opened) as workspace, suppress(ToolFailure):
                    workspace.remove(folder.name, recursive=True, stop=stop)
                    swept += 1
        return swept

    def _is_new(self, call: Call) -> bool:
        """Return whether the folder belongs to the request and the hub generated the request's id from the call's. With
        a session the caller chooses the call ids, so they do not prove that the folder is new."""
        is_request_s = self.sharing is WorkspaceSharing.REQUEST or (
            self.sharing is WorkspaceSharing.SESSION and not call.context.session_id
        )
        return is_request_s and call.context.request_id == call.call_id

    def _is_empty(self, folders: tuple[str, ...]) -> bool:
        try:
            with os.scandir(Path(self.root, *folders)) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True
        except OSError:
            return False


def _folders_of(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _changed_at_s(folder: str, enough_s: float) -> float:
    """Return the time of the last change in the folder, or the first one found that is not before `enough_s`. Links are
    not followed."""
    newest_s = 0.0
    for path, _, files in os.walk(folder):
        for name in (".", *files):
            with suppress(OSError):
                newest_s = max(newest_s, os.lstat(os.path.join(path, name)).st_mtime)  # noqa: PTH118 - made by walk
            if newest_s >= enough_s:
                return newest_s
    return newest_s


AnyTool: TypeAlias = Tool[Any, Any, Any]
Answer = TypeVar("Answer")

CORE_SOURCE: Final = "core"
CUSTOM_SOURCE: Final = "custom"
_UNFIT: Final = frozenset({ErrorKind.INVALID_INPUT, ErrorKind.PATH_OUTSIDE_SANDBOX})
_IN_FOLDER: Final = frozenset({READ_FS, WRITE_FS, EXECUTE_COMMAND})
_PATHS: Final = frozenset({ArgumentRole.PATH_READ, ArgumentRole.PATH_WRITE})

_MSGSPEC_PATH: Final = re.compile(r" - at `(?:key in )?\$(?P<path>.*)`$")
_PATH_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class CoreAdapter:
    """Runs the hub's own tools; names are unique across built-in and custom tools."""

    kind = ToolKind.CORE

    def __init__(
        self,
        tools: Iterable[AnyTool],
        workspaces: Workspaces,
        *,
        custom_tools: Iterable[AnyTool] = (),
        artifact_service: ArtifactService | None = None,
    ) -> None:
        """`artifact_service`: where tools store large outputs; None: nowhere."""
        self._workspaces = workspaces
        self._artifact_service = artifact_service
        self.inner_calls: Callable[[GrantedCall], InnerCalls] | None = None
        """The inner calls of a running call; set by the composition, because the pipeline that runs them is
        made later."""
        self.policy: PolicySource | None = None
        """The policy in force, for calls of which more is known once they run; set by the composition, too."""
        self._built_in = tuple(tools)
        self._custom = tuple(custom_tools)
        self._tools = {tool.name: tool for tool in self._custom + self._built_in}

    def calls_of(self, call: GrantedCall) -> InnerCalls:
        """Return what a running call may call itself. Raises ToolFailure where inner calls are not possible."""
        if self.inner_calls is None:
            raise refuse(ErrorKind.TOOL_UNAVAILABLE, "No calls can be made from here.", retryable=False)
        return self.inner_calls(call)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Definitions of the built-in tools."""
        return tuple(spec_of(tool, source=CORE_SOURCE) for tool in self._built_in)

    def custom_specs(self) -> tuple[ToolSpec, ...]:
        """Definitions of the custom tools."""
        return tuple(spec_of(tool, source=CUSTOM_SOURCE) for tool in self._custom)

    async def execute(self, call: GrantedCall, sink: EventSink) -> Outcome:
        planned = call.planned
        tool = self._tools.get(planned.spec.name) or self._tool(planned)
        try:
            args = msgspec.convert(planned.args, tool.In)
        except msgspec.ValidationError:
            args = _convert_args(tool, planned.args)
        context = self._context(call, sink)
        try:
            output = await tool.run(args, context)
            if context.opened is not None:
                context.note_storage()
            value = await in_thread(msgspec.to_builtins, output) if context.is_large else msgspec.to_builtins(output)
            outcome = Outcome(
                value,
                tuple(context.evidence),
                tuple(context.artifacts),
                truncated=context.truncated,
                raw=context.raw,
                upstream_fails=context.upstream_fails,
                is_large=context.is_large,
                passing=context.passing,
            )
            return outcome if context.mask is None else await in_thread(mask_outcome, outcome, context.mask)
        except ToolFailure as failure:
            raise failure if context.mask is None else mask_failure(failure, context.mask) from failure.__cause__
        except (QuestionAsked, Suspended, KeyboardInterrupt):
            raise
        except BaseException as error:
            if (suspended := suspension_in(error)) is not None:
                raise suspended from None
            # A CancelledError that the tool raises itself would leave the caller without an answer.
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            raise tool_failed(planned.spec.name) from error
        finally:
            if context.opened is not None:
                context.close()

    def effects(self, call: GrantedCall) -> Sequence[str]:
        tool = self._tool(call.planned)
        with closing(self._context(call, SILENT)) as context:
            return tuple(_ask_tool(tool, lambda args: tool.effects(args, context), call.planned))

    async def foresee(self, call: GrantedCall) -> Sequence[str]:
        tool = self._tool(call.planned)
        if type(tool).foresee is Tool.foresee:
            return self.effects(call)
        with closing(self._context(call, SILENT)) as context:
            return tuple(await tool.foresee(_convert_args(tool, call.planned.args), context))

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        tool = self._tool(planned)
        if not _works_in_folder(planned.spec):
            return NO_PRECONDITIONS
        identity = self._workspaces.identity(planned.call)
        try:
            paths = {check_path(path) for path in _ask_tool(tool, tool.touches, planned)}
            if not paths:
                return Preconditions(identity)
            entries = await to_thread(partial(self._entries, planned.call, sorted(paths)))
        except ToolFailure as failure:
            if failure.error.kind not in _UNFIT:
                raise
            return Preconditions(identity)  # the call itself will be refused with the reason
        return Preconditions(identity, digest(entries), entries)

    def _entries(self, call: Call, paths: list[str], stop: threading.Event) -> dict[str, str]:
        """Return the state of the file at each path. Runs in a thread."""
        with closing(self._workspaces.open(call)) as workspace:
            return {path: workspace.state(path, stop) for path in paths}

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        tool = self._tools.get(spec.name)
        if tool is None:
            return NOTHING_FIXED
        asks_effects = not tool.annotations.read_only and type(tool).has_side_effects is not Tool.has_side_effects
        asks_upstream = type(tool).upstream is not Tool.upstream
        return FixedTerms(None if asks_effects else spec.has_side_effects, None if asks_upstream else spec.upstream_key)

    def resumes(self, spec: ToolSpec) -> bool:
        return False

    def has_side_effects(self, planned: PlannedCall) -> bool:
        tool = self._tool(planned)
        if tool.annotations.read_only or type(tool).has_side_effects is Tool.has_side_effects:
            return planned.spec.has_side_effects
        return _ask_tool(tool, tool.has_side_effects, planned)

    def upstream(self, planned: PlannedCall) -> str:
        tool = self._tool(planned)
        if type(tool).upstream is Tool.upstream:
            return planned.spec.upstream_key
        return _ask_tool(tool, tool.upstream, planned) or planned.spec.upstream_key

    def _context(self, call: GrantedCall, sink: EventSink) -> ToolContext:
        asked = call.planned.call
        return ToolContext(
            call_id=asked.call_id,
            principal_id=asked.principal.id,
            request_id=asked.context.request_id,
            deadline_s=call.deadline_s,
            constraints=call.verdict.constraints,
            sink=sink,
            open_workspace=partial(self._workspaces.open, asked, call.planned.preconditions.entries),
            idempotency_key=call.idempotency_key,
            reply=call.reply,
            call=asked,
            artifact_service=self._artifact_service,
            calls=None if self.inner_calls is None else partial(_once, self.inner_calls, call, []),
            decide_statement=None if self.policy is None else partial(decide_statement, self.policy, call),
        )

    def _tool(self, planned: PlannedCall) -> AnyTool:
        tool = self._tools.get(planned.spec.name)
        if tool is None:
            raise not_loaded(planned.spec.name)
        return tool


def _once(make: Callable[[GrantedCall], InnerCalls], call: GrantedCall, made: list[InnerCalls]) -> InnerCalls:
    """Return the same InnerCalls for all of one running call; a new one would not know what has been used."""
    if not made:
        made.append(make(call))
    return made[0]


def _works_in_folder(spec: ToolSpec) -> bool:
    """Return whether a tool works in its folder: a built-in one declares it by capabilities or paths; a custom one may
    always."""
    if spec.source != CORE_SOURCE or not _IN_FOLDER.isdisjoint(spec.capabilities):
        return True
    return any(argument.role in _PATHS for argument in spec.guarded)


def _convert_args(tool: AnyTool, args: JsonObject) -> ToolInput:
    try:
        return msgspec.convert(args, tool.In)
    except msgspec.ValidationError:
        pass  # tried again below, where a failure is the caller's
    # JSON Schema accepts 5.0 as an integer, msgspec does not. That is rare, so the plain conversion is tried first.
    try:
        return msgspec.convert(_whole(args), tool.In)
    except msgspec.ValidationError as error:
        raise _invalid(tool.name, str(error)) from error


def _whole(value: JsonValue) -> JsonValue:
    """Return the value with whole-number floats as integers."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {key: _whole(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(entry) for entry in value]
    return value


def _ask_tool(tool: AnyTool, question: Callable[[ToolInput], Answer], planned: PlannedCall) -> Answer:
    """Return the tool's answer about a call that does not run yet."""
    args = _convert_args(tool, planned.args)
    try:
        return question(args)
    except ToolFailure:
        raise
    except (Exception, SystemExit) as error:
        raise tool_failed(planned.spec.name) from error


def _invalid(tool: str, problem: str) -> ToolFailure:
    """`problem` is a message of msgspec: ``Expected `int`, got `str` - at `$.items[0].size` ``."""
    found = _MSGSPEC_PATH.search(problem)
    path = _pointer(found["path"]) if found else ""
    what = problem[: found.start()] if found else problem
    if what.startswith("Invalid enum value"):
        what = "Not one of the accepted values"  # msgspec quotes the value, which may be a secret in the wrong place
    violation = Violation(path=path, keyword="type", message=f"{what}.")
    message = f"{tool} cannot read its arguments: {what} at `{path or '/'}`. Correct it and call again."
    return refuse(ErrorKind.INVALID_INPUT, message, violations=(violation,))


def _pointer(path: str) -> str:
    """Return the JSON Pointer for a path of msgspec, in which `...` is some key of a mapping."""
    steps = (name or index for name, index in _PATH_STEP.findall(path))
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
