"""Who calls, for whom, and by whose groups: tokens of two issuers at a whole hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.hub import CALL_TIMEOUT_S, RunningHub, request, running_hub
from tests.rpc.minting_issuer import MintingIssuer, minting_issuer
from tests.rpc.principals import Client, state
from tests.rpc.statuses import failed
from tests.rpc.test_certificates import metric
from toolhub.v1 import approval_pb2, error_pb2
from toolhub.v1 import approval_service_pb2 as pb
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.serving import reload_keys
from toolhub_service.domain.event import EventType

READ, WRITE = "core/fs.listDir", "core/fs.writeText"
HERE = {"path": "."}
WRITTEN = {"path": "a.txt", "text": "x", "overwrite": True}
POLICY = """
extends: none
grants:
  - {principals: ["group:corp/writers"], capabilities: [read:fs, write:fs]}
  - {principals: ["issuer:corp"], capabilities: [read:fs]}
  - {principals: ["corp:acme/bot", gateway], capabilities: [read:fs, write:fs]}
  - {principals: ["corp:acme/reader"], capabilities: [read:fs]}
  - {principals: [victim], capabilities: [read:fs]}
roles:
  - {principals: ["group:corp/leads", "corp:acme/bot", "corp:acme/desk"], roles: [agent, approver]}
rules:
  - {id: ask, effect: REQUIRE_APPROVAL, tools: [core/fs.writeText], when: "args.path == 'asked.txt'",
     approval: {approvers: ["group:corp/leads", "corp:acme/bot", "corp:acme/desk"]}}
  - {id: by-bot, effect: DENY, tools: [core/fs.writeText], principals: ["actor:corp:acme/bot"],
     when: "args.path == 'no-bots.txt'"}
  - id: who
    effect: DENY
    tools: [core/fs.writeText]
    when: >-
      args.path == 'who.txt' && principal.tenant == 'acme' && principal.issuer == 'corp' &&
      'writers' in principal.groups && subject.id == principal.id &&
      actor.id == 'corp:acme/bot' && delegation == ['corp:acme/bot']
  - {id: for-whom, effect: DENY, tools: [core/fs.writeText],
     when: "args.path == 'whom.txt' && subject.id == 'victim2' && actor.id == 'gateway' && delegation == ['gateway']"}
  - {id: not-for-mallory, effect: DENY, tools: [core/fs.writeText], principals: ["mallory*"]}
  - {id: by-gateway, effect: DENY, tools: [core/fs.writeText], principals: ["actor:gateway"],
     when: "args.path == 'no-gateways.txt'"}
impersonate: [gateway]
"""


@dataclass(frozen=True)
class DelegationHarness:
    hub: RunningHub
    corp: MintingIssuer
    evil: MintingIssuer
    keys: dict[str, str]

    def ann(self, *groups: str, sub: str = "ann", **claims: Any) -> Client:
        return Client(self.hub, self.corp.bearer(sub, groups=list(groups), org="acme", **claims))

    def key(self, name: str) -> Client:
        return Client(self.hub, (("x-api-key", self.keys[name]),))

    async def approved(self, who: Client, args: dict[str, str], approval_id: str) -> Any:
        asked = request(WRITE, args, request_id="work")
        asked.approval_id = approval_id
        return (await self.hub.stub.Invoke(asked, metadata=who.metadata, timeout=CALL_TIMEOUT_S)).result

    def decide(self, who: Client, approval_id: str) -> Any:
        asked = pb.DecideApprovalRequest(approval_id=approval_id, decision=approval_pb2.DECISION_APPROVE)
        return who.approvals.DecideApproval(asked, metadata=who.metadata, timeout=CALL_TIMEOUT_S)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DelegationHarness]:
    with minting_issuer("corp") as corp, minting_issuer("evil") as evil:
        jwt = {"issuers": [corp.settings(tenant_claim="org"), evil.settings()]}
        auth = {"auth": {"modes": ["jwt", "api-key"], "jwt": jwt}}
        async with running_hub(tmp_path, policy=POLICY, settings=auth) as hub:
            file = Paths(hub.hub.settings).key_file()
            names = ("gateway", "victim", "group:corp/writers", "issuer:corp", "actor:corp:acme/bot")
            keys = {name: file.create(name) for name in names}
            reload_keys(hub.hub, file)
            yield DelegationHarness(hub, corp, evil, keys)


def refusal(result: Any) -> tuple[str, str]:
    kind = error_pb2.ErrorKind.Name(result.error.kind).removeprefix("ERROR_KIND_")
    return kind, str(result.error.details["rule_id"])


@pytest.mark.promise("policy.selectors")
async def test_a_group_gives_rights_to_tokens_of_its_issuer_and_to_no_name_that_looks_alike(
    harness: DelegationHarness,
) -> None:
    assert (await harness.ann("writers").call(WRITE, WRITTEN)).ok
    assert refusal(await harness.ann().call(WRITE, WRITTEN)) == ("POLICY_DENIED", "capabilities")
    assert (await harness.ann().call(READ, HERE)).ok
    # A route that was worked out for her with the group serves none without it, and the other way round.
    assert (await harness.ann("writers").call(WRITE, WRITTEN)).ok

    forged = [harness.key(name) for name in ("group:corp/writers", "issuer:corp", "actor:corp:acme/bot")]
    named = ("writers", "corp/writers", "group:corp/writers")
    forged += [Client(harness.hub, harness.evil.bearer("ann", groups=[group])) for group in named]
    for forger in forged:
        assert (await failed(forger.call(READ, HERE))).reason == "PRINCIPAL_UNKNOWN"

    # A job has the identity that submitted it: it runs by rights of the group, and the log says whose it is.
    job = await harness.ann("writers").submit(WRITE, {"path": "job.txt", "text": "x"})
    ended = await harness.hub.watched(job.job_id, metadata=harness.ann("writers").metadata)
    assert state(ended[-1]) == "SUCCEEDED", ended[-1]
    events = [each.event for each in await harness.hub.events(principal="corp:acme/ann", tool=WRITE)]
    of_job = [each for each in events if each.attributes.get("job_id") == job.job_id and each.call_id]
    assert of_job
    assert {(each.attributes["issuer"], each.attributes["tenant"]) for each in of_job} == {("corp", "acme")}


@pytest.mark.promise("policy.delegation")
async def test_a_token_with_actors_has_the_rights_that_all_of_them_have(harness: DelegationHarness) -> None:
    by_bot = harness.ann("writers", act={"sub": "bot"})
    result = await by_bot.call(WRITE, WRITTEN)
    assert result.ok
    (asked, *_) = await harness.hub.events(call_id=result.call_id)
    assert (asked.event.principal, asked.event.attributes["actors"]) == ("corp:acme/ann", "corp:acme/bot")
    for path, rule in (("no-bots.txt", "by-bot"), ("who.txt", "who")):
        assert refusal(await by_bot.call(WRITE, {"path": path, "text": "x"})) == ("POLICY_DENIED", rule)

    # One of the chain lacks the right, wherever it stands; one is a stranger; one has another issuer.
    reader = {"sub": "reader"}
    for chain in (reader, {"sub": "bot", "act": reader}, {**reader, "act": {"sub": "bot"}}):
        by_reader = harness.ann("writers", act=chain)
        assert (await by_reader.call(READ, HERE)).ok
        assert refusal(await by_reader.call(WRITE, WRITTEN)) == ("POLICY_DENIED", "capabilities")
    only_bot = Client(harness.hub, harness.corp.bearer("bot", org="acme", act={"sub": "bot", "org": "other"}))
    assert refusal(await only_bot.call(WRITE, WRITTEN)) == ("POLICY_DENIED", "capabilities")
    evil = Client(harness.hub, harness.evil.bearer("bot", act={"sub": "bot"}))
    assert (await failed(evil.call(READ, HERE))).reason == "PRINCIPAL_UNKNOWN"
    mixed = await failed(harness.ann("writers", act={"sub": "bot", "iss": harness.evil.url}).call(READ, HERE))
    assert (mixed.code, mixed.metadata["problem"]) == (grpc.StatusCode.UNAUTHENTICATED, "actor")
    unknown = await failed(Client(harness.hub, (("authorization", "Bearer thk_00000000_x"),)).call(READ, HERE))
    assert unknown.code is grpc.StatusCode.UNAUTHENTICATED

    def counted(mode: str, issuer: str, outcome: str) -> float:
        return metric(harness.hub, "toolhub_authentications_total", mode=mode, issuer=issuer, outcome=outcome)

    assert (counted("jwt", "corp", "accepted") >= 8, counted("jwt", "evil", "accepted")) == (True, 1)
    assert (counted("jwt", "corp", "refused"), counted("api-key", "", "refused")) == (1, 1)


@pytest.mark.promise("policy.delegation", "approval.not-by-the-requester")
async def test_nobody_of_a_chain_decides_what_the_chain_requests(harness: DelegationHarness) -> None:
    wanted = {"path": "asked.txt", "text": "x"}
    by_bot = harness.ann("writers", act={"sub": "bot"})
    approval_id = str((await by_bot.call(WRITE, wanted, request_id="work")).error.details["approval_id"])
    leads = [
        harness.ann("writers", "leads"),
        harness.ann("leads", sub="bot"),
        harness.ann("leads", sub="eve", act={"sub": "bot"}),
        harness.ann("leads", sub="eve", act={"sub": "desk", "act": {"sub": "bot"}}),
        harness.ann("leads", sub="eve", act={"sub": "desk", "act": {"sub": "ann"}}),
        harness.ann("leads", sub="eve", act={"sub": "desk", "act": {"sub": "reader"}}),
    ]
    for lead in leads[:4]:
        assert (await failed(harness.decide(lead, approval_id))).reason == "OWN_REQUEST"
    # An actor has to be an approver itself.
    for lead in leads[4:]:
        assert (await failed(harness.decide(lead, approval_id))).reason == "ROLE_MISSING"
    await harness.decide(harness.ann("leads", sub="eve", act={"sub": "desk"}), approval_id)
    events = [each.event for each in await harness.hub.events() if each.event.type is EventType.APPROVAL_DECIDED]
    (decided,) = events
    assert (decided.principal, decided.attributes["actors"]) == ("corp:acme/eve", "corp:acme/bot"), "who asked, by whom"
    assert decided.attributes["approver_actors"] == "corp:acme/desk"
    assert (decided.attributes["approver_issuer"], decided.attributes["approver_tenant"]) == ("corp", "acme")
    # What was granted to her with the bot is not granted to her alone.
    alone = await harness.approved(harness.ann("writers"), wanted, approval_id)
    assert alone.error.details["approval_id"] != approval_id
    assert (await harness.approved(by_bot, wanted, approval_id)).ok


@pytest.mark.promise("policy.delegation")
async def test_an_actor_for_a_known_principal_has_no_more_rights_than_that_principal(
    harness: DelegationHarness,
) -> None:
    gateway = harness.key("gateway")
    assert (await gateway.call(WRITE, WRITTEN, user_id="a-customer")).ok
    for whom in ({"user_id": "victim"}, {"agent_id": "victim"}, {"user_id": "corp:acme/reader", "agent_id": "x"}):
        assert (await gateway.call(READ, HERE, **whom)).ok
        assert refusal(await gateway.call(WRITE, WRITTEN, **whom)) == ("POLICY_DENIED", "capabilities")
    denied = await gateway.call(WRITE, {"path": "whom.txt", "text": "x"}, user_id="victim2")
    assert refusal(denied) == ("POLICY_DENIED", "for-whom")


@pytest.mark.promise("policy.delegation")
async def test_a_rule_against_a_principal_also_binds_those_who_act_for_it(
    harness: DelegationHarness,
) -> None:
    gateway = harness.key("gateway")
    for whom in ({"user_id": "mallory"}, {"agent_id": "mallory-2", "user_id": "a-customer"}):
        assert (await gateway.call(READ, HERE, **whom)).ok, "a rule takes no other rights away"
        assert refusal(await gateway.call(WRITE, WRITTEN, **whom)) == ("POLICY_DENIED", "not-for-mallory")
    closed = {"path": "no-gateways.txt", "text": "x"}
    assert refusal(await gateway.call(WRITE, closed, user_id="a-customer")) == ("POLICY_DENIED", "by-gateway")
    assert (await gateway.call(WRITE, closed)).ok, "here it acts for itself"
