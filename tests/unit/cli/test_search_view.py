"""The output of a search: why each hit ranks where it does, with hidden characters escaped."""

from __future__ import annotations

from toolhub.v1 import tool_pb2
from toolhub.v1 import tool_service_pb2 as pb
from toolhub_service.cli.terminal.output import first_line
from toolhub_service.cli.tools import summary_of_search, why

READ = pb.SearchReason(part="words", word="read", found="read", fields=["name", "description"], score=3.14)
LIKE = pb.SearchReason(part="related", word="picture", found="image", fields=["name"], score=2)
USED = pb.SearchReason(part="usage", word="report", fields=["usage"], score=0.8)
MEANT = pb.SearchReason(part="meaning", rank=2)


def a_hit(*reasons: pb.SearchReason) -> pb.SearchHit:
    return pb.SearchHit(tool=tool_pb2.ToolSpec(name="a/b"), score=1, reasons=reasons, matched_terms=["old"])


def test_every_kind_of_ground_is_shown() -> None:
    assert why(a_hit(MEANT, READ)) == "meaning #2, read 3.1 (name, description)"
    assert why(a_hit(LIKE, USED)) == "picture ~ image 2.0 (name), report 0.8 (usage)"


def test_grounds_are_listed_as_far_as_there_is_room() -> None:
    assert why(a_hit(READ, READ, READ)) == "read 3.1 (name, description), …"


def test_hub_that_gives_no_grounds_still_has_words() -> None:
    assert why(a_hit()) == "old"


def test_a_note_states_what_the_ranking_used_and_ignored() -> None:
    answer = pb.SearchToolsResponse(hits=[a_hit()], total_size=7, ranked_by=["words", "usage"], note="not embedded yet")
    assert summary_of_search(answer) == "1 of 7 matching tools, best first, by words, usage · not embedded yet"
    assert "No tool matches" in summary_of_search(pb.SearchToolsResponse())


def test_description_of_a_stranger_hides_nothing() -> None:
    assert first_line("Read\u202e it. Then more") == "Read\\u202e it"
