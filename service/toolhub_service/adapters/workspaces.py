"""Which folder a call works in: `<root>/<principal>/<request_id>/` unless configured otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

from toolhub_service.domain.call import Call
from toolhub_service.guards.folder_names import workspace_folder_name
from toolhub_service.tools.workspace import Workspace

_NOTHING: Mapping[str, str] = MappingProxyType({})
_NEW = "%new"
"""No id has this folder name: `%` stands before two digits, `~` or nothing."""


class WorkspaceSharing(Enum):
    """Which calls see the same files."""

    REQUEST = "request"
    """Those of one principal under one request_id."""
    SESSION = "session"
    """Those of one principal under one session_id; a call without one has its request's folder."""
    PRINCIPAL = "principal"
    SHARED = "shared"
    """All calls of all principals."""


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Maps calls to folders beneath `root`. Ids of any characters are safe: each becomes one folder name."""

    root: str
    sharing: WorkspaceSharing = WorkspaceSharing.REQUEST

    def folders(self, call: Call) -> tuple[str, ...]:
        """Names of the folders beneath the root, outermost first."""
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
        """Names the call's folder wherever the root lies. A call without a request_id is given a folder of its own
        each time: while nothing is in it, one is as good as another."""
        folders = self.folders(call)
        if self._is_new(call) and self._is_empty(folders):
            folders = (*folders[:-1], _NEW)
        return "/".join((self.sharing.value, *folders))

    def open(self, call: Call, expected: Mapping[str, str] = _NOTHING) -> Workspace:
        """The call's folder, made when missing; `expected`: see `Workspace`. Raises ToolFailure IO_ERROR when it
        cannot be."""
        return Workspace(self.root, *self.folders(call), expected=expected)

    def _is_new(self, call: Call) -> bool:
        """Whether the hub itself has named the request, after the call, and the folder is the request's. The caller of
        a session chooses its call ids: so it is not taken at its word about what is in the folder."""
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
