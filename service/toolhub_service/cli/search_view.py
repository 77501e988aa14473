"""What a search found, with the grounds for each hit."""

from __future__ import annotations

from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.output import print_table, revealed

_GROUNDS_MAX = 4
_WHY_MAX_CHARS = 56
"""Both shown of a hit; --json has all."""


def print_hits(answer: pb.SearchToolsResponse) -> None:
    """One line each, best first; nothing when nothing was found."""
    rows = [(f"{hit.score:.2f}", hit.tool.name, why(hit), first_line(hit.tool.description)) for hit in answer.hits]
    if rows:
        print_table(("SCORE", "TOOL", "WHY", "DESCRIPTION"), rows, is_cut=True)


def found_note(answer: pb.SearchToolsResponse) -> str:
    """How many were found, and what the ranking is made of."""
    if not answer.hits:
        return "No tool matches; `toolhub tools list` shows all"
    told = f"{len(answer.hits)} of {answer.total_size} that match, best first"
    if len(answer.ranked_by) > 1:
        told += f", by {', '.join(answer.ranked_by)}"
    return f"{told} · {answer.note}" if answer.note else told


def why(hit: pb.SearchHit) -> str:
    """Such as `file 3.1 (name, description), read 2.0 (name), meaning #2`, as many grounds as there is room for."""
    told = ""
    for reason in hit.reasons[:_GROUNDS_MAX]:
        more = f"{told}, {_ground(reason)}" if told else _ground(reason)
        if told and len(more) > _WHY_MAX_CHARS:
            return f"{told}, …"
        told = more
    return told or ", ".join(hit.matched_terms[:_GROUNDS_MAX])


def first_line(text: str) -> str:
    """The first sentence, or what stands on the first line; of a remote tool they are a stranger's words."""
    return revealed(text.partition(". ")[0].partition("\n")[0].rstrip("."))


def _ground(reason: pb.SearchReason) -> str:
    if reason.part == "meaning":
        return f"meaning #{reason.rank}"
    word = reason.word
    if reason.part == "related" and reason.found and reason.found != reason.word:
        word = f"{reason.word} ~ {reason.found}"
    return f"{word} {reason.score:.1f} ({', '.join(reason.fields) or reason.part})"
