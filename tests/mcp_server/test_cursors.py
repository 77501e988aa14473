"""Cursors of MCP's lists are their caller's and their list's."""

from __future__ import annotations

import pytest
from mcp.shared.exceptions import MCPError

from toolhub_service.domain.call import Principal
from toolhub_service.mcp_server.cursors import Cursors


@pytest.mark.parametrize("listed", ["tools", "prompts", "resources", "skills", "tasks"])
def test_a_cursor_of_mcp_is_its_caller_s_and_its_list_s(listed: str) -> None:
    cursors, ann, bob = Cursors(b"k" * 32), Principal("ann"), Principal("bob")
    page = cursors.seal({"nextCursor": "core/fs.copy"}, ann, listed)
    assert cursors.open(page["nextCursor"], ann, listed) == "core/fs.copy"
    assert Cursors(b"k" * 32).open(page["nextCursor"], ann, listed) == "core/fs.copy"
    for who, what, cursor in (
        (bob, listed, page["nextCursor"]),
        (ann, "others", page["nextCursor"]),
        (ann, listed, "core/fs.copy"),
        (ann, listed, page["nextCursor"] + "2"),
    ):
        with pytest.raises(MCPError):
            cursors.open(cursor, who, what)
    with pytest.raises(MCPError):
        Cursors(b"o" * 32).open(page["nextCursor"], ann, listed)
    assert cursors.open(None, ann, listed) == ""
    assert cursors.seal({"tools": []}, ann, listed) == {"tools": []}
