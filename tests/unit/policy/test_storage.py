"""`storage` of policy.yaml: which bounds a principal has."""

from __future__ import annotations

import pytest

from toolhub_service.domain.storage import Bound
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.live import LivePolicy
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.policy.storage import DEFAULT_TERMS

TEXT = """
extends: none
storage:
  - {principals: [ci-*], workspace_bytes: 5000, soft_ratio: 0.5}
  - {principals: [ci-one, ann], workspace_bytes: 7000, memory_bytes: 0}
"""


def test_each_bound_is_that_of_the_first_entry_that_names_the_principal_and_sets_it() -> None:
    policy = LivePolicy(PolicySnapshot.load(TEXT))
    one = policy.storage_of("ci-one")
    assert one.workspace == Bound("storage.workspace_bytes", 5_000)
    assert one.memory == Bound("storage.memory_bytes", 0)
    assert one.artifact == DEFAULT_TERMS.artifact
    assert one.soft_ratio == 0.5
    assert policy.storage_of("ann").workspace.max_bytes == 7_000
    assert policy.storage_of("bob") == DEFAULT_TERMS


def test_a_reload_changes_the_bounds_at_once() -> None:
    policy = LivePolicy(PolicySnapshot.load(TEXT))
    assert policy.storage_of("ann").workspace.max_bytes == 7_000
    assert policy.replace("extends: none\n").applied
    assert policy.storage_of("ann") == DEFAULT_TERMS


def test_a_policy_without_storage_keeps_its_revision() -> None:
    assert (
        PolicySnapshot.load("extends: none\nstorage: []\n").revision == PolicySnapshot.load("extends: none\n").revision
    )
    assert PolicySnapshot.load(TEXT).revision != PolicySnapshot.load("extends: none\n").revision


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{principals: [a]}", "sets nothing"),
        ("{principals: [], memory_bytes: 1}", "storage"),
        ("{principals: [a], workspace_bytes: -1}", "workspace_bytes"),
        ("{principals: [a], soft_ratio: 0}", "soft_ratio"),
        ("{principals: [a], soft_ratio: 1.1}", "soft_ratio"),
        ("{principals: [a], workspace_byte: 1}", "workspace_byte"),
    ],
)
def test_an_entry_that_means_nothing_is_refused(entry: str, expected: str) -> None:
    with pytest.raises(InvalidPolicy, match=expected):
        PolicySnapshot.load(f"extends: none\nstorage: [{entry}]\n")
