"""What the operator said of one LangChain source, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolhub_service.domain.call import Call

Injected = Literal["principal", "user_id", "agent_id", "request_id", "task_id", "session_id", "call_id"]


@dataclass(frozen=True, slots=True)
class LoadTerms:
    """What is loaded. Travels to worker processes as JSON."""

    load: tuple[str, ...] = ()
    """`package.module:name` of a tool, a list of tools, a toolkit, or a class or function that gives one of these."""
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keyword arguments of the classes and functions; values may be secrets."""
    entry_points: tuple[str, ...] = ()
    """Names of `toolhub.langchain` entry points; `*`: all."""
    trusted_namespaces: tuple[str, ...] = ()
    """Packages from which `load` may import."""


@dataclass(frozen=True, slots=True)
class LangChainTerms:
    """One source."""

    name: str
    loads: LoadTerms
    capabilities: tuple[str, ...] = ()
    """What a principal must hold to call its tools; empty: `langchain:<name>`."""
    tags: tuple[str, ...] = ()
    timeout_s: float = 60.0
    max_concurrency: int = 0
    inject: Mapping[str, Injected] = field(default_factory=dict)
    """Injected arguments by name, and what of the call is put into them."""
    processes: int = 2
    """Workers for tools without async code."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """What stands in `loads.args` and must not stand in a definition."""

    @property
    def upstream(self) -> str:
        """Key of the breaker and the concurrency limit that its tools share."""
        return f"langchain:{self.name}"

    @property
    def endpoint(self) -> str:
        """Where it stands, for people and records."""
        named = (*self.loads.load, *(f"entry point {name}" for name in self.loads.entry_points))
        return f"python:{', '.join(named)}"[:300]


def injected_value(call: Call, what: Injected) -> str:
    """What of the call is put into an injected argument; empty where the call does not say."""
    match what:
        case "principal":
            return call.principal.id
        case "call_id":
            return call.call_id
        case "user_id":
            return call.context.user_id
        case "agent_id":
            return call.context.agent_id
        case "request_id":
            return call.context.request_id
        case "task_id":
            return call.context.task_id
        case "session_id":
            return call.context.session_id
