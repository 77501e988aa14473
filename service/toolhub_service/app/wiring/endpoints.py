"""Wires the endpoints that built-in tools reach by a configured name: databases, message channels, agents.

Nothing is connected and no driver imported before a call needs it. Secrets are read when they are used, so that a
rotated one applies at once, and are given to the redactor first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from toolhub_service.domain.tool import DatabaseTerms
from toolhub_service.egress.client import EgressClient
from toolhub_service.egress.transport import GuardedTransport
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sections.source_config import SecretRef, SourceValues, resolve_value, secrets_of_channel
from toolhub_service.settings.document import Settings
from toolhub_service.settings.tool_sections import Agent, Channel, DatabaseSettings
from toolhub_service.tools.agent.chat_completions import Endpoint
from toolhub_service.tools.agent.loop import SpawnableAgent
from toolhub_service.tools.agent.spawn import AgentSpawn
from toolhub_service.tools.database.connection import Database, DatabaseLimits
from toolhub_service.tools.database.postgres import PostgresDatabase
from toolhub_service.tools.database.sqlite import SqliteDatabase
from toolhub_service.tools.media.tools import EXTENSIONS, MediaChannel, media_tools
from toolhub_service.tools.tool import Tool

# For a model that thinks before it answers; each agent has its own `stall_s`, which is less.
_IDLE_S = 700.0


def endpoint_tools(
    settings: Settings, transport: GuardedTransport, redactor: Redactor, user_agent: str
) -> list[Tool[Any, Any, Any]]:
    """Return core/agent.spawn and core/media.send; listed UNAVAILABLE when nothing is configured."""
    client = EgressClient(transport, user_agent=user_agent, idle_timeout_s=_IDLE_S)
    agents = [_agent(agent, redactor) for agent in settings.agents]
    channels = [_channel(channel, redactor) for channel in settings.channels]
    return [AgentSpawn(agents, client, redactor), *media_tools(channels)]


def _channel(channel: Channel, redactor: Redactor) -> MediaChannel:
    # Resolved for each message: a key rotated on disk applies from the next one on.
    def url() -> str:
        text = resolve_value(channel.url)
        # Many parts of an Apprise URL are secret, and its service's errors may quote them.
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


def make_databases(settings: Settings, redactor: Redactor) -> list[Database]:
    """Return the databases in the order of the configuration; `redactor` learns the secrets of their URLs when they are
    read."""
    return [_database(entry, SourceValues(redactor)) for entry in settings.databases]


def _database(entry: DatabaseSettings, values: SourceValues) -> Database:
    terms = DatabaseTerms(
        name=entry.name,
        dialect="sqlite" if entry.file else "postgres",
        may_write=not entry.read_only,
        tables=entry.tables,
        functions=entry.functions,
        schema=entry.schema,
    )
    limits = DatabaseLimits(
        timeout_s=entry.timeout_s,
        max_rows=entry.max_rows,
        max_bytes=entry.max_bytes,
        max_cost=entry.max_cost,
        export=entry.export,
    )
    if entry.file:
        return SqliteDatabase(terms, limits, Path(entry.file).expanduser(), entry.description)
    return PostgresDatabase(terms, limits, partial(values.one, entry.url), entry.description)
