"""What the pages for users say never to happen is held by a test: a sentence that nothing holds may be false."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

import pytest
import yaml

from tests.promises import TESTS, promises
from tests.unit.docs.pages_of_docs import DOCS, prose

HELD: Mapping[str, Mapping[str, str | None]] = yaml.safe_load((TESTS / "page_promises.yaml").read_text("utf-8"))
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*- |\|)")
_SENTENCE = re.compile(r"(?<=[.:;])\s+(?=[A-Z`*\[(])")
_NEVER = re.compile(r"\bnever\b", re.IGNORECASE)
_REPORTED = re.compile(r"exception.{0,60}(only in the log|never|not shown)", re.IGNORECASE)


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page that say what never happens, each on one line."""
    for block in _BLOCK.split(prose(DOCS / page)):
        for sentence in _SENTENCE.split(" ".join(block.split())):
            if _NEVER.search(sentence):
                yield sentence


@pytest.mark.parametrize("page", HELD)
def test_every_sentence_that_says_never_is_held_by_a_test(page: str) -> None:
    found = list(sentences(page))
    assert [said for said in found if not any(words in said for words in HELD[page])] == []
    assert [words for words in HELD[page] if not any(words in said for said in found)] == [], "no page says so any more"


def test_what_holds_a_sentence_exists() -> None:
    known = promises()
    for page, held in HELD.items():
        for words, holder in held.items():
            if holder is None or holder in known:
                continue
            file, _, test = holder.partition("::")
            assert (TESTS / file).is_file(), f"{page}: {words}: {holder} is neither a promise nor a test"
            tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert test in names, f"{page}: {words}: {holder} does not exist"


def test_the_search_finds_a_sentence_that_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HELD, "contract.md", {})
    with pytest.raises(AssertionError, match="never from the message"):
        test_every_sentence_that_says_never_is_held_by_a_test("contract.md")


def test_no_page_denies_that_a_langchain_tools_exception_is_quoted() -> None:
    """It is quoted, redacted (`langchain.exceptions`): `rpc/test_langchain.py` holds the code to that."""
    flat = " ".join(prose(DOCS / "sources.md").split())
    part = flat[flat.index("*Errors.* A ToolException") :]
    assert not _REPORTED.search(part[: part.index("*Results*")])
