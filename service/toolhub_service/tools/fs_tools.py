"""The file tools, core/fs.*."""

from __future__ import annotations

from typing import Any

from toolhub_service.tools.fs_move import Copy, DeletePath, Move
from toolhub_service.tools.fs_read import FileSha256, ReadText, Stat
from toolhub_service.tools.fs_search import FindFiles, ListDir, SearchText
from toolhub_service.tools.fs_write import EditText, WriteText
from toolhub_service.tools.tool import Tool


def fs_tools() -> list[Tool[Any, Any]]:
    """One of each."""
    return [
        ReadText(),
        WriteText(),
        EditText(),
        ListDir(),
        FindFiles(),
        SearchText(),
        FileSha256(),
        Stat(),
        Copy(),
        Move(),
        DeletePath(),
    ]
