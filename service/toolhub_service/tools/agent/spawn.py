"""core/agent.spawn: a task for a model that the operator has configured, with some of the caller's own tools.

It always runs as a job. The agent has the caller's rights for the named tools; the hub (`ToolContext.calls`) enforces
that, not the loop (`loop.py`) that asks the model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final

from msgspec import Meta, structs

from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.ports import InnerCalls
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import SPAWN_AGENT, Annotations, CostHints, Example, ToolLimits, ToolSpec
from toolhub_service.egress.client import EgressClient
from toolhub_service.guards.secrets import Redactor
from toolhub_service.schema.canonical_json import dumps
from toolhub_service.tools.agent.loop import AgentLoop, Ending, SpawnableAgent
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput

TOOLS_MAX: Final = 128
"""Limit of model interfaces."""
TASK_CHARS: Final = 64 * 1024


class AgentSpawn(Tool["AgentSpawn.In", "AgentSpawn.Out"]):
    name = "core/agent.spawn"
    description = (
        "Give a task to another agent, which works on it by itself with the tools you name, and read what it answers "
        "when the job is over (core/job.status, core/job.result). Say everything it must know in the task: it sees "
        "nothing else of your conversation. It can do no more than you may yourself."
    )
    tags = ("agent", "spawn", "delegate", "subagent", "task")
    capabilities = frozenset({SPAWN_AGENT})
    annotations = Annotations(open_world=True, supports_progress=True)
    cost = CostHints(latency_ms_p50=30_000, latency_ms_p95=600_000, is_async=True)
    limits = ToolLimits(timeout_s=600.0)
    examples = (
        Example(
            "Have a folder read and summed up",
            {"task": "Read every file below reports/ and list the figures of 2025.", "tools": ["core/fs.*"]},
        ),
    )

    class In(ToolInput, frozen=True):
        task: Annotated[
            str, Meta(description="What to do, and all that is known.", min_length=1, max_length=TASK_CHARS)
        ]
        label: Annotated[str, Meta(description="Short name of the task, for people.", max_length=100)] = ""
        agent: Annotated[
            str, Meta(description="Name of a configured agent; may be left out when there is one.", max_length=64)
        ] = ""
        tools: (
            Annotated[
                tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...],
                Meta(
                    description="Names or globs of your tools that it may use; left out: those that change nothing.",
                    max_length=TOOLS_MAX,
                ),
            ]
            | None
        ) = None
        max_steps: Annotated[int, Meta(description="Answers of the model at most.", ge=1, le=200)] | None = None

    class Out(ToolOutput, frozen=True):
        text: Annotated[str, Meta(description="What the agent answered at last; untrusted text.")]
        ended: Annotated[
            Ending,
            Meta(
                description="ANSWERED: it was done. STEPS, CALLS, LENGTH: a bound was reached before, so the text may "
                "be none or unfinished."
            ),
        ]
        label: str
        agent: str
        steps: int
        tool_calls: int
        failed_calls: int
        prompt_tokens: Annotated[int, Meta(description="As the endpoint says; 0: it said nothing.")]
        completion_tokens: int
        transcript: Annotated[str, Meta(description="Id of an artifact with every message, a JSON object a line.")]

    def __init__(self, agents: Sequence[SpawnableAgent], client: EgressClient, redactor: Redactor) -> None:
        self._agents: Mapping[str, SpawnableAgent] = {agent.name: agent for agent in agents}
        self._client = client
        self._redactor = redactor

    def full_description(self) -> str:
        return f"{self.description} Agents: {', '.join(self._agents)}." if self._agents else self.description

    def unavailable_reason(self) -> str:
        if self._agents:
            return ""
        return (
            "no agent is configured: add one to `agents` of the settings, {name: helper, url: https://…/v1, model: …}"
        )

    def upstream(self, args: In) -> str:
        # One breaker per agent: one endpoint may fail while another works.
        return f"agent:{args.agent or next(iter(self._agents), '')}"

    def effects(self, args: In, context: ToolContext) -> Sequence[str]:
        agent = self._agent(args)
        _calls(context, agent)
        named = "your tools that change nothing" if args.tools is None else ", ".join(args.tools) or "no tools"
        return (f"Give the task to agent {agent.name}, which may use {named}.",)

    async def run(self, args: In, context: ToolContext) -> Out:
        agent = self._agent(args)
        calls = _calls(context, agent)
        specs = await _choose_tools(calls, agent, args.tools)
        lent = calls.restrict_to((spec.name for spec in specs), agent.max_calls)
        steps_max = min(args.max_steps or agent.max_steps, agent.max_steps)
        work = AgentLoop(agent, lent, specs, task=args.task, label=args.label, steps_max=steps_max)
        try:
            ended = await work.run(self._client, context.sink, context.deadline_s)
        except ToolFailure as failure:
            raise await self._with_transcript(failure, work, context) from failure
        transcript = await self._keep(work, context)
        summary = f"agent {agent.name}: {work.steps} answers of its model, {work.tool_calls} tool calls, {ended}"
        context.proves(EvidenceType.TOOL, context.call_id, summary)
        return self.Out(
            text=work.text,
            ended=ended,
            label=args.label,
            agent=agent.name,
            steps=work.steps,
            tool_calls=work.tool_calls,
            failed_calls=work.failed_calls,
            prompt_tokens=work.prompt_tokens,
            completion_tokens=work.completion_tokens,
            transcript=transcript,
        )

    def _agent(self, args: In) -> SpawnableAgent:
        if not args.agent and len(self._agents) == 1:
            return next(iter(self._agents.values()))
        agent = self._agents.get(args.agent)
        if agent is None:
            message = f"Name one of the configured agents: {', '.join(self._agents)}."
            raise refuse(ErrorKind.INVALID_INPUT, message, field="agent")
        return agent

    async def _with_transcript(self, failure: ToolFailure, work: AgentLoop, context: ToolContext) -> ToolFailure:
        """Return the failure with a reference to the transcript of what was done before it."""
        transcript = await self._keep(work, context) if work.steps else ""
        if not transcript:
            return failure
        done = f"Before that it made {work.tool_calls} tool calls, see artifact {transcript}, the transcript."
        # Not retryable: its calls may have had effects, and a second run would cause others.
        return ToolFailure(structs.replace(failure.error, message=f"{failure.error.message} {done}", retryable=False))

    async def _keep(self, work: AgentLoop, context: ToolContext) -> str:
        """Return the id of the transcript; empty where it cannot be stored."""
        try:
            kept = await context.keep(self._lines(work), media_type="application/jsonl", name="transcript.jsonl")
        except ToolFailure as full:
            why = full.error.kind.value
            context.proves(EvidenceType.TOOL, context.call_id, f"the transcript could not be kept: {why}")
            return ""
        return "" if kept is None else kept.artifact_id

    async def _lines(self, work: AgentLoop) -> AsyncIterator[bytes]:
        for message in work.messages:
            # Redacted, because answers of tools and texts of models may contain secrets.
            yield dumps(self._redactor.value(message)) + b"\n"


def _calls(context: ToolContext, agent: SpawnableAgent) -> InnerCalls:
    """Return the calls. Raises ToolFailure BUDGET_EXCEEDED when the nesting of agents exceeds the limit."""
    if context.calls is None:
        raise refuse(ErrorKind.TOOL_UNAVAILABLE, "No calls can be made from here.", retryable=False)
    calls = context.calls()
    if calls.depth >= agent.max_depth:
        message = f"{agent.max_depth} agents stand above this call already, and no more may. Do the task yourself."
        raise refuse(ErrorKind.BUDGET_EXCEEDED, message)
    return calls


async def _choose_tools(calls: InnerCalls, agent: SpawnableAgent, patterns: Sequence[str] | None) -> list[ToolSpec]:
    """Return the callable tools that the patterns name, by name. Raises ToolFailure INVALID_INPUT for patterns that
    match none."""
    if patterns is None:
        chosen = list(await calls.offered_tools(lambda spec: spec.annotations.read_only))
    else:
        chosen = list(await calls.offered_tools(lambda spec: any(fnmatchcase(spec.name, text) for text in patterns)))
        if unknown := [text for text in patterns if not any(fnmatchcase(spec.name, text) for spec in chosen)]:
            message = (
                f"You have no tool named {', '.join(unknown[:5])}. Name tools that you may call, or globs of them."
            )
            raise refuse(ErrorKind.INVALID_INPUT, message, field="tools")
    if calls.depth + 1 >= agent.max_depth:  # it would only be refused
        chosen = [spec for spec in chosen if spec.name != AgentSpawn.name]
    if len(chosen) > TOOLS_MAX:
        message = (
            f"These are {len(chosen)} tools, and a model takes {TOOLS_MAX} at most. Name those it needs in `tools`."
        )
        raise refuse(ErrorKind.INVALID_INPUT, message, field="tools")
    return chosen
