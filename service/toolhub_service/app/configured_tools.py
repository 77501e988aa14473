"""Built-in tools that need something an operator names: the channels of core/media.send, the agents of
core/agent.spawn. What is secret is read when it is used, so that a rotated one counts at once, and hidden before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolhub_service.adapters.source_config import SecretRef, SourceValues, resolve_value, secrets_of_channel
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings
from toolhub_service.settings.tool_sections import Agent, Channel
from toolhub_service.tools.agent_loop import SpawnableAgent
from toolhub_service.tools.agent_spawn import AgentSpawn
from toolhub_service.tools.chat_completions import Endpoint
from toolhub_service.tools.egress.client import EgressClient
from toolhub_service.tools.egress.transport import GuardedTransport
from toolhub_service.tools.media_tools import EXTENSIONS, MediaChannel, media_tools
from toolhub_service.tools.tool import Tool

# Of a model that thinks before it says anything; each agent has its own `stall_s`, which is less.
_IDLE_S = 700.0


def configured_tools(
    settings: Settings, transport: GuardedTransport, redactor: Redactor, user_agent: str
) -> list[Tool[Any, Any, Any]]:
    """Listed UNAVAILABLE where nothing is configured."""
    client = EgressClient(transport, user_agent=user_agent, idle_timeout_s=_IDLE_S)
    agents = [_agent(agent, redactor) for agent in settings.agents]
    channels = [_channel(channel, redactor) for channel in settings.channels]
    return [AgentSpawn(agents, client, redactor), *media_tools(channels)]


def _channel(channel: Channel, redactor: Redactor) -> MediaChannel:
    def url() -> str:
        text = resolve_value(channel.url)
        redactor.learn(secrets_of_channel(text))
        return text

    extensions = frozenset(channel.extensions or EXTENSIONS)
    return MediaChannel(channel.name, url, takes_files=channel.attachments, extensions=extensions)


def _agent(agent: Agent, redactor: Redactor) -> SpawnableAgent:
    endpoint = Endpoint(
        url=agent.url,
        model=agent.model,
        key=_key(agent.key, redactor),
        max_tokens=agent.max_tokens,
        stall_s=agent.stall_s,
        parameters=agent.parameters,
    )
    return SpawnableAgent(
        agent.name,
        endpoint,
        max_steps=agent.max_steps,
        max_calls=agent.max_calls,
        max_depth=agent.max_depth,
        system=agent.system,
    )


def _key(key: SecretRef | None, redactor: Redactor) -> Callable[[], str]:
    return lambda: "" if key is None else SourceValues(redactor).one(key)
