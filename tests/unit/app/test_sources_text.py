"""sources.yaml changed as text: what people wrote stays, and what cannot be followed is left alone."""

from __future__ import annotations

import pytest
import yaml

from toolhub_service.app.sources_text import NotEditable, with_sources, without_source

MEMORY = {"memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}}
WRITTEN = """\
# ours
sources:
    # the documents
    files:   # read only
        command: npx   # from npm
        args:
            - -y
            - server   # the reference one
        # until August
    # the code host
    github: {url: "https://a.example/mcp"}

# the end
"""


@pytest.mark.parametrize("text", ["", "\n", "# mine\n", "sources:\n", "sources: {}\n", "sources: {}  # none yet"])
def test_first_source_begins_the_list(text: str) -> None:
    after = with_sources(text, MEMORY)
    assert yaml.safe_load(after) == {"sources": MEMORY}
    assert text.partition("#")[2].strip() in after


def test_reference_to_a_secret_stands_on_one_line() -> None:
    reference = {"file": f"/{'a-long-folder/' * 12}token", "prefix": "Bearer "}
    after = with_sources("", {"crm": {"url": "https://a.example", "headers": {"Authorization": reference}}})
    assert [line for line in after.splitlines() if line.strip().startswith("Authorization: {") and line.endswith("}")]


def test_source_is_put_after_the_others_in_their_indentation() -> None:
    after = with_sources(WRITTEN, MEMORY)
    assert after.startswith(WRITTEN[: WRITTEN.index("\n# the end")])
    assert after.endswith("\n\n# the end\n")
    assert "\n    memory:\n" in after
    assert list(yaml.safe_load(after)["sources"]) == ["files", "github", "memory"]


def test_text_without_a_last_line_end_is_added_to() -> None:
    after = with_sources("sources:\n  a: {command: b}", MEMORY)
    assert list(yaml.safe_load(after)["sources"]) == ["a", "memory"]


def test_removed_source_takes_its_own_comments_along_and_nobody_elses() -> None:
    without_files = without_source(WRITTEN, "files")
    assert "the documents" not in without_files
    assert "until August" not in without_files
    for kept in ("# ours", "# the code host", "# the end"):
        assert kept in without_files
    without_github = without_source(WRITTEN, "github")
    assert "the code host" not in without_github
    for kept in ("# the documents", "# read only", "# until August", "# the end"):
        assert kept in without_github


def test_last_source_leaves_an_empty_list_that_can_be_added_to() -> None:
    empty = without_source("sources:\n  a: {command: b}\n", "a")
    assert yaml.safe_load(empty) == {"sources": None}
    assert yaml.safe_load(with_sources(empty, MEMORY)) == {"sources": MEMORY}


def test_adding_and_removing_gives_the_same_text() -> None:
    assert without_source(with_sources(WRITTEN, MEMORY), "memory") == WRITTEN


@pytest.mark.parametrize(
    "text",
    [
        "sources: {a: {command: b}}\n",
        "[1]\n",
        "sources:\n  memory: {command: x}\n",
        "sources:\n  a: &one {command: b}\n  c: {<<: *one}\n...\n---\nsources: {}\n",
    ],
)
def test_what_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"one line|no mapping|already|YAML"):
        with_sources(text, MEMORY)


def test_source_that_another_one_refers_to_is_not_taken_away() -> None:
    with pytest.raises(NotEditable):
        without_source("sources:\n  a: &one {command: b}\n  c: *one\n", "a")
