"""Which folder a call works in: `<root>/<principal>/<request_id>/` unless configured otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from toolhub_service.domain.call import Call
from toolhub_service.guards.folder_names import workspace_folder_name
from toolhub_service.tools.workspace import Workspace


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

    def open(self, call: Call) -> Workspace:
        """The call's folder, made when missing. Raises ToolFailure IO_ERROR when it cannot be."""
        return Workspace(self.root, *self.folders(call))
