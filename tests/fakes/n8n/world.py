"""What one n8n knows: its version, its workflows and executions, who may ask, and what it was asked."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.n8n.engine import ChangeSignal, Engine
from tests.fakes.n8n.executions import ExecutionBook
from tests.fakes.n8n.workflows import Workflow

KEY_SCOPES = (
    *("workflow:create", "workflow:delete", "workflow:list", "workflow:read", "workflow:update"),
    *("workflow:activate", "workflow:deactivate", "workflowTags:update", "workflowTags:list"),
    *("execution:delete", "execution:read", "execution:retry", "execution:list", "tag:list", "tag:read"),
)
"""What an API key may be allowed, as far as this server has it; `execution:stop` comes with 2.10."""
PASSWORD = "lab-password-1"


@dataclass(frozen=True)
class RecordedRequest:
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    cookies: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        """The body; None where it is none."""
        return json.loads(self.body) if self.body else None


@dataclass
class Owner:
    email: str = "lab@example.com"
    first_name: str = "Lab"
    last_name: str = "Owner"
    password: str = PASSWORD


class ServerState:
    def __init__(self, version: str, credentials: Mapping[str, tuple[str, str]]) -> None:
        self.version = version
        self.credentials = dict(credentials)
        """By id: the header and the value that a webhook with header auth wants."""
        self.workflows: dict[str, Workflow] = {}
        self.news = ChangeSignal()
        self.book = ExecutionBook()
        self.engine = Engine(self.book, self.news)
        self.keys: dict[str, frozenset[str]] = {}
        """Scopes by API key."""
        self.owner: Owner | None = None
        self.sessions: dict[str, str] = {}
        """The browser id (empty: none) by cookie."""
        self.url = ""

    @property
    def can_stop(self) -> bool:
        """Whether the public API has `/executions/{id}/stop`: from 2.10.0 on."""
        major, minor = (int(part) for part in self.version.split(".")[:2])
        return (major, minor) >= (2, 10)

    @property
    def scopes(self) -> tuple[str, ...]:
        return (*KEY_SCOPES, "execution:stop") if self.can_stop else KEY_SCOPES

    def make_key(self, scopes: frozenset[str]) -> str:
        key = f"n8n_api_{secrets.token_hex(16)}"
        self.keys[key] = scopes
        return key
