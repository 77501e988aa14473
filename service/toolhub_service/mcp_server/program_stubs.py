"""Tools as Python functions: how a search answers a client that writes programs, in place of names and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from toolhub_service.domain.tool import ToolSpec
from toolhub_service.mcp_server.offer import PROGRAM_TOOL
from toolhub_service.registry.export.stubs import PYTHON_HEAD, FunctionName, python_modules
from toolhub_service.search.listing import HitPage

NONE_FOUND: Final = "No tool that you may call does this. Other words may find one; a name that is not shown is none."


def stubs_of(tools: Sequence[ToolSpec], names: Mapping[str, FunctionName], page: HitPage) -> str:
    """Return Python stubs, with a comment that says whether these are all. There is no stub of
    core/program.run, which a program cannot call."""
    callables = [spec for spec in tools if spec.name != PROGRAM_TOOL and spec.name in names]
    modules = python_modules((spec, names[spec.name]) for spec in callables)
    texts = [f"# import {name}{body.removeprefix(PYTHON_HEAD)}" for name, body in modules.items()]
    more = page.total_size - len(tools)
    silent = [source.name for source in page.sources]
    notes = [page.note] if page.note else []
    if not callables:
        notes.append(NONE_FOUND)
    if more:
        notes.append(f"{more} more fit less well.")
    if silent:
        notes.append(f"Not searched, for they could not be read: {', '.join(silent)}.")
    notes.append("" if more or silent else "These are all.")
    comment = " ".join(" ".join(notes).split())
    return "\n".join([*texts, f"# {comment}"]) if callables else f"# {comment}"
