"""The redactor against gitleaks' own samples, and a canary against every sink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.corpora import load_json
from toolhub_service.guards.secrets import Redactor

REDACTOR = Redactor()


def samples(kind: str) -> Iterator[str]:
    for sample in load_json("redaction/gitleaks_samples.json.gz")[kind]:
        yield sample["text"]


def test_at_least_nine_in_ten_leaked_secrets_are_hidden_whether_alone_or_after_a_name() -> None:
    texts = list(samples("true_positives"))
    alone = sum(REDACTOR.text(text) != text for text in texts) / len(texts)
    named = sum(REDACTOR.text(f'api_key="{text}"') != f'api_key="{text}"' for text in texts) / len(texts)
    assert alone >= 0.95
    assert named >= 0.98


def test_placeholders_and_lookalikes_are_left_alone_more_often_than_not() -> None:
    """Most of these stand right behind a secret's name with a dummy value, which a redactor rightly hides."""
    texts = list(samples("false_positives"))
    assert sum(REDACTOR.text(text) != text for text in texts) / len(texts) <= 0.5


@pytest.mark.parametrize("kind", ["true_positives", "false_positives"])
def test_redacting_a_sample_twice_changes_nothing_more(kind: str) -> None:
    for text in samples(kind):
        once = REDACTOR.text(text)
        assert REDACTOR.text(once) == once
