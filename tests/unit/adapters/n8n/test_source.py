"""What n8n offers: workflows that are named, compared with what is there, and those that are discovered."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.fakes.n8n import FOREVER, How, fake_n8n
from tests.unit.adapters.n8n.flows import ECHO, FLOWS, NAMES_ITSELF, flow, wait
from tests.unit.adapters.n8n.n8n_harness import ASYNC, SYNC, before, n8n_harness
from toolhub_service.adapters.n8n.kind import N8nDiscovery, N8nWorkflow
from toolhub_service.adapters.n8n.workflow import published_version, webhooks_of
from toolhub_service.domain.tool import IdempotencyMode
from toolhub_service.sections.source_config import ToolTerms

TEXT: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False}


class TestNamedWorkflows:
    async def test_configured_words_replace_those_of_n8n(self) -> None:
        terms = N8nWorkflow(
            description="Says it.", webhook="echo", input_schema=TEXT, output_schema={"type": "object"}, version="2.1.0"
        )
        async with n8n_harness({"say": terms}, with_api=False, tags=("lab",), timeout_s=7.0) as harness:
            made = (await harness.definitions())["say"]
        spec = made.spec
        assert (made.is_operators, made.problem) == (True, "")
        assert (spec.name, spec.description, spec.version) == ("flows/say", "Says it.", "2.1.0")
        assert (spec.input_schema, spec.output_schema) == (TEXT, {"type": "object"})
        assert (set(spec.capabilities), spec.tags) == ({"n8n:flows"}, ("lab", "n8n", "flows"))
        assert (spec.endpoint, spec.upstream, spec.limits.timeout_s) == (harness.n8n.url, "n8n:flows", 7.0)
        assert spec.idempotency is IdempotencyMode.DERIVED
        assert not spec.cost.is_async

    async def test_without_a_schema_it_takes_any_object_and_is_marked(self) -> None:
        async with n8n_harness({"echo": SYNC}, with_api=False) as harness:
            spec = await harness.spec("echo")
        assert (spec.input_schema, "open-schema" in spec.tags) == ({"type": "object"}, True)

    async def test_only_what_the_operator_declares_harmless_is_taken_as_such(self) -> None:
        tools = {"asks": ToolTerms(read_only=True), "slow": ToolTerms(offered=False)}
        named = {
            "asks": N8nWorkflow(method="GET"),
            "echo": SYNC,
            "slow": SYNC,
            "once": N8nWorkflow(deduplicates=True),
        }
        async with n8n_harness(named, with_api=False, tools=tools) as harness:
            made = {name: found.spec.annotations for name, found in (await harness.definitions()).items()}
        assert made.keys() == {"asks", "echo", "once"}
        assert (made["asks"].read_only, made["echo"].safe_to_repeat, made["once"].idempotent) == (True, False, True)

    @pytest.mark.parametrize(
        ("terms", "words"),
        [
            (N8nWorkflow(webhook="../rest/login"), "not a path"),
            (N8nWorkflow(webhook="a/./b"), "not a path"),
            (N8nWorkflow(webhook="user/:id"), "not a path"),
            (N8nWorkflow(webhook="a?b=c"), "not a path"),
            (N8nWorkflow(workflow_id="echo"), "api_key"),
            (replace(ASYNC, webhook="long"), "api_key"),
            (N8nWorkflow(input_schema={"type": "string"}), '"type": "object"'),
            (N8nWorkflow(input_schema={"type": 3}), "input_schema"),
            (N8nWorkflow(output_schema={"type": "nothing"}), "output_schema"),
            (N8nWorkflow(input_schema=TEXT, idempotency_field="text"), "argument of callers"),
            (N8nWorkflow(method="GET", idempotency_field="key"), "needs a body"),
            (
                N8nWorkflow(method="DELETE", input_schema={"type": "object", "properties": {"a": {"type": "array"}}}),
                "query",
            ),
        ],
    )
    async def test_terms_that_contradict_each_other_are_a_problem_with_its_remedy(
        self, terms: N8nWorkflow, words: str
    ) -> None:
        async with n8n_harness({"tool": terms}, with_api=False) as harness:
            made = (await harness.definitions())["tool"]
        assert words in made.problem

    async def test_configured_workflow_is_offered_while_n8n_is_away(self) -> None:
        async with n8n_harness({"echo": SYNC}) as harness:
            await harness.n8n.down()
            found = await harness.discover()
            await harness.n8n.up()
        assert [made.spec.name for made in found.definitions] == ["flows/echo"]
        assert "did not answer" in found.problems[0]

    async def test_a_key_that_is_not_accepted_is_reported_and_takes_nothing_away(self) -> None:
        async with fake_n8n(workflows=FLOWS) as n8n:
            n8n.api_key = "wrong"
            async with before(n8n, {"echo": SYNC}) as harness:
                found = await harness.discover()
                assert await harness.value("echo") == {"echo": {}}
                assert any("api_key" in line for line in harness.source.diagnostics())
        assert len(found.definitions) == 1
        assert "does not accept the `api_key`" in found.problems[0]


class TestApiChecks:
    """With an API, what would keep a call from working is reported."""

    @pytest.mark.parametrize(
        ("terms", "words"),
        [
            (N8nWorkflow(webhook="nowhere"), "no active workflow has the webhook `nowhere`"),
            (N8nWorkflow(webhook="off"), "no active workflow has the webhook `off`"),
            (N8nWorkflow(webhook="off", workflow_id="off"), "not active"),
            (N8nWorkflow(webhook="echo", workflow_id="none"), "no workflow none"),
            (N8nWorkflow(webhook="old", workflow_id="echo"), "no webhook `old` but echo"),
            (N8nWorkflow(webhook="echo", method="PUT"), "accepts POST, not PUT"),
            (N8nWorkflow(webhook="fires"), "onReceived"),
        ],
    )
    async def test_entry_that_does_not_fit_its_workflow_is_a_problem(self, terms: N8nWorkflow, words: str) -> None:
        async with n8n_harness({"tool": terms}) as harness:
            harness.n8n.add(flow("off", "lastNode"), active=False)
            found = await harness.discover()
        (problem,) = found.problems
        assert words in problem
        assert problem.startswith("`tool`: ")
        assert not found.definitions[0].problem

    @pytest.mark.parametrize("workflow_id", ["none", "twice", "hookless"])
    async def test_workflow_that_is_found_but_cannot_be_called_is_a_problem(self, workflow_id: str) -> None:
        twice = flow("twice", "lastNode", {**ECHO, "type": "n8n-nodes-base.webhook", "parameters": {"path": "b"}})
        hookless = flow("hookless", "lastNode")
        hookless["nodes"][0]["disabled"] = True
        async with n8n_harness({"tool": N8nWorkflow(workflow_id=workflow_id)}, flows=[twice, hookless]) as harness:
            (made,) = (await harness.discover()).definitions
        assert made.problem

    def test_a_draft_does_not_count(self) -> None:
        draft, live = flow("x", "lastNode", path="draft"), flow("x", "lastNode", path="live")
        assert [webhook.path for webhook in webhooks_of(published_version({**draft, "activeVersion": live}))] == [
            "live"
        ]

    async def test_entry_that_fits_its_workflow_has_no_problem(self) -> None:
        named = {"echo": SYNC, "long": ASYNC, "by-id": N8nWorkflow(workflow_id="slow")}
        async with n8n_harness(named) as harness:
            assert (await harness.discover()).problems == ()


class TestDiscoveredWorkflows:
    async def _offered(self, *flows: dict[str, Any], **options: Any) -> dict[str, Any]:
        async with n8n_harness(flows=list(flows), discover=N8nDiscovery(**options)) as harness:
            return await harness.definitions()

    async def test_active_workflows_with_a_webhook_are_offered_and_can_be_called(self) -> None:
        async with n8n_harness({"mine": N8nWorkflow(webhook="slow")}, discover=N8nDiscovery()) as harness:
            harness.n8n.add(flow("off", "lastNode"), active=False)
            made = await harness.definitions()
            assert made.keys() == {made_flow["name"] for made_flow in FLOWS} - {"slow"} | {"mine"}
            assert not made["echo"].is_operators
            assert "open-schema" in made["echo"].spec.tags
            assert made["echo"].spec.name == "flows/echo"
            assert await harness.value("echo", {"a": 1}) == {"echo": {"a": 1}}

    async def test_the_mode_is_what_the_webhook_does(self) -> None:
        names_at_once = flow("c", "onReceived", webhook={"options": {"responseData": "={{ $execution.id }}"}})
        made = await self._offered(
            flow("a", "responseNode", NAMES_ITSELF, wait(1)),
            flow("b", "responseNode", wait(1), NAMES_ITSELF),
            names_at_once,
            flow("d", "onReceived", wait(1)),
            flow("e", "lastNode", ECHO),
        )
        assert {name: found.spec.cost.is_async for name, found in made.items()} == {
            **dict.fromkeys("ac", True),
            **dict.fromkeys("bde", False),
        }

    async def test_only_workflows_with_all_the_tags_are_offered(self) -> None:
        made = await self._offered(
            flow("a", "lastNode", tags=["tool", "lab"]),
            flow("b", "lastNode", tags=["tool"]),
            flow("c", "lastNode"),
            tags=("tool", "lab"),
        )
        assert made.keys() == {"a"}

    async def test_a_workflows_note_is_its_description(self) -> None:
        noted = flow("noted", "lastNode")
        noted["nodes"][0]["notes"] = "A note."
        sticky = {"name": "S", "type": "n8n-nodes-base.stickyNote", "parameters": {"content": "Sticky."}}
        stuck = flow("stuck", "lastNode")
        stuck["nodes"].append({"id": "s", "position": [0, 0], "typeVersion": 1, **sticky})
        made = await self._offered(flow("own", "lastNode", description="Its own."), noted, stuck)
        assert made["own"].spec.description == "Its own."
        assert made["noted"].spec.description == "A note."
        assert made["stuck"].spec.description == "Sticky."

    async def test_one_of_two_names_that_read_alike_is_left_out_and_reported(self) -> None:
        flows = [flow("same", "lastNode"), {**flow("b", "lastNode"), "name": "same"}]
        async with n8n_harness(flows=flows, discover=N8nDiscovery()) as harness:
            found = await harness.discover()
        assert len(found.definitions) == 1
        assert "too similar" in found.problems[0]

    async def test_all_pages_are_read(self) -> None:
        async with n8n_harness(
            flows=[flow(f"w{n}", "lastNode") for n in range(120)], discover=N8nDiscovery()
        ) as harness:
            assert len((await harness.discover()).definitions) == 120
            assert len(harness.n8n.asked("GET", "/api/v1/workflows")) == 3

    async def test_an_api_that_is_away_leaves_what_was_known(self) -> None:
        async with n8n_harness(discover=N8nDiscovery()) as harness:
            before_it = await harness.definitions()
            harness.n8n.fails("/api/*", How.BAD_GATEWAY, times=FOREVER)
            assert (await harness.definitions()).keys() == before_it.keys()
            assert await harness.value("echo", {"a": 1}) == {"echo": {"a": 1}}

    async def test_without_a_key_nothing_is_discovered_and_that_is_reported(self) -> None:
        async with n8n_harness({"echo": SYNC}, with_api=False, discover=N8nDiscovery()) as harness:
            found = await harness.discover()
        assert [made.spec.name for made in found.definitions] == ["flows/echo"]
        assert "api_key" in found.problems[0]

    async def test_a_pinned_definition_can_be_called_before_the_next_reading(self) -> None:
        async with fake_n8n(workflows=FLOWS) as n8n:
            async with before(n8n, discover=N8nDiscovery()) as first:
                known = (await first.definitions())["long"]
            async with before(n8n, discover=N8nDiscovery()) as later:
                again = later.source.restore_pinned(known.remote)
                assert again is not None
                assert (again.spec, again.remote) == (known.spec, known.remote)
                assert later.server.workflows["long"].entry.is_async

    @pytest.mark.parametrize("remote", [{}, {"name": "x"}, {"name": 1, "webhook": {"method": "GET", "path": "x"}}])
    async def test_remote_part_that_no_pin_kept_restores_nothing(self, remote: dict[str, Any]) -> None:
        async with n8n_harness(discover=N8nDiscovery()) as harness:
            assert harness.source.restore_pinned(remote) is None
