"""Every promise has a test, and every claim of a test names a promise."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.promises import TESTS, Claim, Promise, claims, promises
from tests.unit.docs.pages_of_docs import ROOT, anchors

PROMISES = promises()
SOURCE = re.compile(
    r"(?:docs/[\w/-]+|CONTRIBUTING|README)\.md#[\w-]+|"
    r"RFC \d+|AIP-\d+( .+)?|CWE-\d+|CVE-\d+-\d+|[\w-]+/[\w-]+#\d+|W3C .+|.+ \(\d{4}\)"
)


@pytest.fixture(scope="module")
def claimed() -> tuple[Claim, ...]:
    return tuple(claims())


@pytest.mark.parametrize("promise", PROMISES.values(), ids=lambda promise: promise.id)
def test_promise_is_kept_by_a_test(promise: Promise, claimed: tuple[Claim, ...]) -> None:
    kept_by = [claim.test for claim in claimed if claim.promise_id == promise.id]
    assert kept_by, f"no test is marked as keeping: {promise.sentence}"
    assert all(test.rpartition("::")[2].startswith(("test_", "Test")) for test in kept_by)


def test_no_test_claims_a_promise_that_nobody_made(claimed: tuple[Claim, ...]) -> None:
    assert {claim.promise_id: claim.test for claim in claimed if claim.promise_id not in PROMISES} == {}


def test_no_test_claims_a_promise_twice(claimed: tuple[Claim, ...]) -> None:
    assert [claim for claim, times in Counter(claimed).items() if times > 1] == []


def test_promises_are_sentences_with_a_source() -> None:
    for promise in PROMISES.values():
        assert re.fullmatch(r"[a-z][a-z0-9]*\.[a-z-]+", promise.id), promise.id
        assert promise.sentence[0].isupper(), promise.id
        assert promise.sentence.endswith("."), promise.id
        assert SOURCE.fullmatch(promise.source), promise.source


def test_pages_and_sections_that_promises_cite_exist() -> None:
    """A section that is renamed takes its promises along."""
    cited = {promise.source for promise in PROMISES.values() if ".md#" in promise.source}
    broken = []
    for source in sorted(cited):
        page, _, section = source.partition("#")
        if not (ROOT / page).exists() or section not in anchors(ROOT / page):
            broken.append(source)
    assert broken == []


def test_each_id_is_written_once_in_the_manifest() -> None:
    """YAML lets the last of two equal keys win silently."""
    ids = re.findall(r"^([^\s#][^:]*):", (TESTS / "promises.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    assert [id for id, times in Counter(ids).items() if times > 1] == []
