"""The file tools, core/fs.*."""

from __future__ import annotations

from typing import Any

from toolhub_service.tools.fs_copy import Copy
from toolhub_service.tools.fs_delete_path import DeletePath
from toolhub_service.tools.fs_edit_text import EditText
from toolhub_service.tools.fs_find_files import FindFiles
from toolhub_service.tools.fs_list_dir import ListDir
from toolhub_service.tools.fs_move import Move
from toolhub_service.tools.fs_read_text import ReadText
from toolhub_service.tools.fs_search_text import SearchText
from toolhub_service.tools.fs_sha256 import FileSha256
from toolhub_service.tools.fs_stat import Stat
from toolhub_service.tools.fs_write_text import WriteText
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
