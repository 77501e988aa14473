"""What is known of a run of a workflow: for evidence, and for the details of what went wrong."""

from __future__ import annotations

from toolhub_service.adapters.n8n.executions import Execution
from toolhub_service.adapters.n8n.lookup import Found
from toolhub_service.adapters.n8n.server import N8nServer
from toolhub_service.adapters.n8n.webhooks import Webhook
from toolhub_service.domain.call import GrantedCall
from toolhub_service.domain.result import Evidence, EvidenceType


def facts(
    server: N8nServer, webhook: Webhook | None, execution: Execution | None, execution_id: str = ""
) -> dict[str, str]:
    """Under the names that evidence and errors use; what is not known is left out.

    Never the URL of the webhook: many have no other protection than that nobody knows it.
    """
    known = {
        "source": server.name,
        "workflow_id": webhook.workflow_id if webhook else "",
        "workflow_version": webhook.version if webhook else "",
        "execution_id": execution_id,
    }
    if execution is not None:
        known |= {
            "execution_id": execution.id,
            "workflow_id": execution.workflow_id or known["workflow_id"],
            "workflow_version": execution.workflow_version or known["workflow_version"],
            "execution_status": execution.status,
            "duration_ms": "" if execution.duration_ms is None else str(execution.duration_ms),
        }
    return {name: value for name, value in known.items() if value}


def found_facts(server: N8nServer, webhook: Webhook | None, found: Found) -> dict[str, str]:
    """Of an execution that was looked up by its key."""
    more = {"looked_up": "true"} | ({"other_executions": str(found.others)} if found.others else {})
    return facts(server, webhook, found.execution) | more


def run_evidence(call: GrantedCall, known: dict[str, str], summary: str, **more: str) -> Evidence:
    ref = known.get("execution_id") or call.call.call_id
    return Evidence(EvidenceType.TOOL, ref, f"{call.spec.name} {summary}", attributes={**known, **more})
