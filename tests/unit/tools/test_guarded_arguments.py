"""Each argument of a built-in tool that is a path, a URL or a command has its role, so that guards and rules see it."""

from __future__ import annotations

import re
from pathlib import Path

from toolhub_service.app.offline import configured_tools
from toolhub_service.settings.document import Settings

GUARDED_NAME = re.compile(r"(path|paths|url|urls|root|cwd|argv|command|destination|source)$", re.IGNORECASE)
OTHERS = {
    ("core/util.json.select", "path"),  # an expression
    ("core/memory.write", "source"),  # where a text comes from, as the writer says
}


async def test_every_argument_that_names_a_path_a_url_or_a_command_is_guarded(tmp_path: Path) -> None:
    tools = await configured_tools(Settings(data_dir=str(tmp_path)))
    named = {
        (spec.name, argument)
        for spec in tools
        for argument in map(str, spec.input_schema["properties"])  # type: ignore[arg-type]  # an object
        if GUARDED_NAME.search(argument)
    }
    guarded = {(spec.name, argument.name) for spec in tools for argument in spec.guarded}
    assert named - guarded == OTHERS
    assert len(named) > 25
