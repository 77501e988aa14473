"""What the operator said of one n8n server, as plain values: secrets resolved, nothing tried yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from toolhub_service.adapters.client_tls import NO_TLS_FILES, TlsTerms
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.headers import Headers

WITHOUT_BODY = frozenset({"GET", "DELETE"})
"""Methods whose arguments go into the query."""


@dataclass(frozen=True, slots=True)
class FailureSign:
    """What in a result means that the workflow has not done what it was asked to."""

    at: str
    """JSON Pointer into the result."""
    equals: JsonValue = None
    """The value there that means failure; None: anything but null, false and empty."""
    message: str = ""
    """JSON Pointer to what the caller is told; empty: a general text."""


@dataclass(frozen=True, slots=True)
class WorkflowTerms:
    """One workflow, by the path of its webhook or by its id."""

    description: str = ""
    webhook: str = ""
    """Below `/webhook/`; empty: looked up by `workflow_id`."""
    workflow_id: str = ""
    method: str = "POST"
    is_async: bool = False
    """Whether the answer names an execution that goes on, instead of being the result."""
    execution_id: str = "/executionId"
    """JSON Pointer into the answer."""
    input_schema: JsonObject | None = None
    """None: any object."""
    output_schema: JsonObject = field(default_factory=dict)
    version: str = "1.0.0"
    headers: Headers = field(default=(), repr=False)
    """All that its calls are sent with besides the hub's own."""
    idempotency_field: str = ""
    derived_key: bool = True
    deduplicates: bool = False
    fails_when: tuple[FailureSign, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveryTerms:
    tags: tuple[str, ...] = ()
    """Only workflows that bear all of them."""
    mode: Literal["auto", "sync", "async"] = "auto"


@dataclass(frozen=True, slots=True)
class N8nTerms:
    """One server."""

    name: str
    """Of the source."""
    url: str
    """Base, without a slash at its end."""
    api_key: str = field(default="", repr=False)
    headers: Headers = field(default=(), repr=False)
    """Sent to webhooks of discovered workflows."""
    workflows: Mapping[str, WorkflowTerms] = field(default_factory=dict)
    discover: DiscoveryTerms | None = None
    api_path: str = "/api/v1"
    webhook_path: str = "/webhook"
    tls: TlsTerms = NO_TLS_FILES
    connect_timeout_s: float = 10.0
    max_response_bytes: int = 8 * 1024 * 1024
    capabilities: tuple[str, ...] = ()
    """What a principal must hold to call its tools; empty: `n8n:<name>`."""
    tags: tuple[str, ...] = ()
    timeout_s: float = 60.0
    max_concurrency: int = 0
    shown_as: str = ""
    """What stands for its URL wherever that is shown; empty: the URL itself."""

    @property
    def upstream(self) -> str:
        """Key of the breaker and the concurrency limit that its tools share."""
        return f"n8n:{self.name}"
