"""One n8n server as its source and the adapter share it: the way to it, and what is known of its workflows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from toolhub_service.adapters.n8n.api import N8nApi
from toolhub_service.adapters.n8n.client import N8nClient
from toolhub_service.adapters.n8n.lookup import Lookup
from toolhub_service.adapters.n8n.terms import N8nTerms, WorkflowTerms
from toolhub_service.adapters.n8n.webhooks import Webhook, webhooks_of
from toolhub_service.adapters.remote_polling import Poller
from toolhub_service.domain.ports import Resolver
from toolhub_service.guards.masking import Mask
from toolhub_service.guards.shown_urls import shown_url
from toolhub_service.guards.urls import parse_url

NO_MASK: Final = Mask()


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow that is a tool."""

    terms: WorkflowTerms
    webhook: Webhook | None = None
    """None: named by its id, and not looked up yet."""


class N8nServer:
    """Made before anything is connected."""

    def __init__(self, terms: N8nTerms, resolver: Resolver, poller: Poller, mask: Mask = NO_MASK) -> None:
        """`mask` hides the source's own secrets in results: a workflow that hands its request on hands them on, too.

        Raises ToolFailure, OSError and ValueError as N8nClient."""
        self.terms = terms
        self.client = N8nClient(terms, resolver)
        self.api = N8nApi(self.client, terms) if terms.api_key else None
        self.lookup = Lookup(self.api) if self.api is not None else None
        self.poller = poller
        self.mask = mask
        self.workflows: dict[str, Workflow] = {
            name: Workflow(workflow, named_webhook(workflow)) for name, workflow in terms.workflows.items()
        }
        """By the tools' own names; a reading puts another one in its place."""

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def endpoint(self) -> str:
        return self.terms.shown_as or shown_url(parse_url(self.terms.url)).rstrip("/")

    def url_of(self, webhook: Webhook) -> str:
        return f"{self.terms.url}{self.terms.webhook_path}/{webhook.path}"

    async def looked_up(self, own_name: str, workflow: Workflow) -> Webhook | None:
        """The webhook of a workflow named by its id, as it is now; None when it has none, or several.

        Raises ApiTrouble, Absent.
        """
        if self.api is None:
            return None
        told = await self.api.workflow(workflow.terms.workflow_id)
        webhooks = webhooks_of(told)
        if len(webhooks) != 1 or told.get("active") is not True:
            return None
        if self.workflows.get(own_name) is not None:
            self.workflows[own_name] = replace(workflow, webhook=webhooks[0])
        return webhooks[0]


def named_webhook(workflow: WorkflowTerms) -> Webhook | None:
    """Where the operator says that it is."""
    return Webhook(workflow.method, workflow.webhook, workflow.workflow_id) if workflow.webhook else None
