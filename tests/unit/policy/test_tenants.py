"""Which tenant a principal belongs to, by its id alone, and which sources a tenant sees."""

from __future__ import annotations

import pytest

from toolhub_service.domain.call import TenantBounds
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.live import LivePolicy
from toolhub_service.policy.parsing import InvalidPolicy
from toolhub_service.policy.tenants import UNASSIGNED, Tenants
from toolhub_service.transport.interceptors.mutual_tls import SpiffePrincipals

POLICY = """
extends: none
tenants:
  - {name: "*", principals: [ops]}
  - {name: acme, principals: ["acme-*", "corp:acme/*"], sources: [acme-crm, shared]}
  - {name: globex, principals: ["globex-*"], sources: [shared]}
  - {name: "{tenant}", principals: ["corp:{tenant}/*", "spiffe://{tenant}/*", "{tenant}x"]}
"""


REVISION_OF_BEFORE = "ea3c7a9cdfd7357b63484a32377e36e6a71ca11b337e35a06490668b60a58553"
"""Of a policy with one tenant, as it was before there were bounds."""


def tenants(text: str = POLICY.replace(', "{tenant}x"', "")) -> Tenants:
    found = PolicySnapshot.load(text).table.tenants
    assert found is not None
    return found


def test_a_principal_belongs_to_the_tenant_of_the_first_entry_that_names_it() -> None:
    named = {
        "acme-bot": "acme",
        "corp:acme/alice": "acme",
        "corp:globex/alice": "globex",
        "corp:globex/acme/alice": "globex",
        "spiffe://initech.example/ns/a": "initech.example",
        "spiffe://initech.example": UNASSIGNED,
        "corp:alice": UNASSIGNED,
        "corp:-/alice": UNASSIGNED,
        "corp:*/alice": UNASSIGNED,
        "corp:/alice": UNASSIGNED,
        f"corp:{'a' * 129}/alice": UNASSIGNED,
        "xcorp:acme/alice": UNASSIGNED,
        "ops": "*",
        "": "",
    }
    assert {id: tenants().of(id) for id in named} == named


def test_a_source_is_seen_by_the_tenants_that_list_it_or_by_all_where_none_does() -> None:
    shown = {
        source: [name for name in ("acme", "globex", UNASSIGNED, "*") if tenants().shows(name, source)]
        for source in ("acme-crm", "shared", "core")
    }
    assert shown == {
        "acme-crm": ["acme", "*"],
        "shared": ["acme", "globex", "*"],
        "core": ["acme", "globex", UNASSIGNED, "*"],
    }
    own = {source for source in ("acme-crm", "shared", "core") if tenants().tenancy_named("acme").owns(source)}
    assert own == {"acme-crm"}


def test_a_tenancy_stays_the_same_until_the_entries_change() -> None:
    text = POLICY.replace(', "{tenant}x"', "")
    policy = LivePolicy(PolicySnapshot.load(text))
    before = policy.principal("acme-bot").tenancy
    assert before is not None
    policy.replace(text + "rules: [{id: a, effect: DENY}]\n")
    assert policy.principal("acme-bot").tenancy == before
    policy.replace(text.replace("shared", "others"))
    assert policy.principal("acme-bot").tenancy != before
    policy.replace("extends: none")
    assert policy.principal("acme-bot").tenancy is None


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{name: '{tenant}', principals: ['corp:*']}", "needs `{tenant}` once"),
        ("{name: '{tenant}', principals: ['{tenant}/*']}", "needs `{tenant}` once"),
        ("{name: '{tenant}', principals: ['c*:{tenant}/*']}", "needs `{tenant}` once"),
        ("{name: '{tenant}', principals: ['corp:{tenant}*']}", "must end the id"),
        ("{name: '{tenant}', principals: ['corp:{tenant}/{tenant}']}", "needs `{tenant}` once"),
        ("{name: acme, principals: ['corp:{tenant}/*']}", "needs `name: '{tenant}'`"),
        ("{name: '*', principals: [ops], sources: [a]}", "have a name of their own"),
        ("{name: '*', principals: [ops], max_open_jobs: 1}", "bounds are of a tenant"),
        ("{name: acme, principals: [a], max_artifacts: -1}", "max_artifacts"),
        ("{name: '-', principals: [ops]}", "matching regex"),
        ("{name: 'a b', principals: [ops]}", "matching regex"),
        ("{principals: [ops]}", "name"),
    ],
)
def test_an_entry_that_could_mean_two_things_is_refused(entry: str, expected: str) -> None:
    with pytest.raises(InvalidPolicy, match="tenants") as refused:
        PolicySnapshot.load(f"extends: none\ntenants: [{entry}]\n")
    assert expected in str(refused.value)


def test_a_bound_is_that_of_the_first_entry_of_the_tenant_s_own_name_that_sets_it() -> None:
    found = tenants("""
extends: none
tenants:
  - {name: "{tenant}", principals: ["corp:{tenant}/*"], max_open_jobs: 9, max_artifacts: 5}
  - {name: acme, principals: [acme-bot], max_open_jobs: 3}
  - {name: acme, principals: [acme-two], max_open_jobs: 4, max_open_approvals: 2}
""")
    assert found.tenancy_named("acme").bounds == TenantBounds(max_artifacts=5, max_open_jobs=3, max_open_approvals=2)
    assert found.tenancy_named("globex").bounds == TenantBounds(max_artifacts=5, max_open_jobs=9)
    assert found.tenancy_named(UNASSIGNED).bounds == TenantBounds()


def test_a_bound_changes_neither_what_is_seen_nor_the_revision_of_a_policy_without_it() -> None:
    text = "extends: none\ntenants: [{name: acme, principals: [acme-bot]}]\n"
    assert PolicySnapshot.load(text).revision == REVISION_OF_BEFORE
    policy = LivePolicy(PolicySnapshot.load(text))
    before = policy.principal("acme-bot").tenancy
    assert policy.replace(text.replace("]}", "], max_open_jobs: 1}")).revision != REVISION_OF_BEFORE
    assert policy.principal("acme-bot").tenancy == before


def test_policy_sets_the_tenant_of_a_workload_and_else_its_trust_domain_does() -> None:
    workload, by_domain = "spiffe://example.org/agent", {"example.org": "home"}
    for tenants, tenant in (([], "home"), ([{"name": "acme", "principals": ["spiffe://example.org/*"]}], "acme")):
        policy = PolicySnapshot.load({"tenants": tenants})
        assert SpiffePrincipals(policy.principal, by_domain).principal(workload).tenant == tenant
