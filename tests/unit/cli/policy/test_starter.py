"""What `toolhub policy init` writes."""

from __future__ import annotations

import re

from toolhub_service.cli.policy.starter import starter_policy
from toolhub_service.policy.decide import PolicySnapshot


def test_the_written_starter_policy_equals_the_built_in_one() -> None:
    assert PolicySnapshot.load(starter_policy()).revision == PolicySnapshot().revision


def test_every_example_in_it_is_valid() -> None:
    document = PolicySnapshot.load(re.sub(r"^#(?! \S)", "", starter_policy(), flags=re.MULTILINE)).document
    assert all((len(document.grants) > 1, document.rules, document.egress, document.commands, document.limits))
