"""Who may call which RPC: a role a service, and where one RPC is for others too, its own. What a tool call may do is
the runtime's check_policy step."""

from __future__ import annotations

import grpc

from toolhub_service.domain.principal import Role
from toolhub_service.transport.interceptors.layer import Layer
from toolhub_service.transport.rpc import Method, ServicerContext, current_principal
from toolhub_service.transport.status import RpcFailure

ROLE_OF_SERVICE: dict[str, Role] = {
    "toolhub.v1.ToolService": Role.AGENT,
    "toolhub.v1.JobService": Role.AGENT,
    "toolhub.v1.ArtifactService": Role.AGENT,
    "toolhub.v1.RegistryService": Role.OPERATOR,
    "toolhub.v1.ApprovalService": Role.APPROVER,
    "toolhub.v1.AuditService": Role.AUDITOR,
}
_OVERSEERS = frozenset({Role.OPERATOR, Role.AUDITOR})
ALSO_FOR: dict[str, frozenset[Role]] = {
    "/toolhub.v1.ApprovalService/ListApprovals": frozenset({Role.AGENT}),
    "/toolhub.v1.ApprovalService/GetApproval": frozenset({Role.AGENT}),
    "/toolhub.v1.ApprovalService/WatchApprovals": frozenset({Role.AGENT}),
    "/toolhub.v1.JobService/GetJob": _OVERSEERS,
    "/toolhub.v1.JobService/ListJobs": _OVERSEERS,
    "/toolhub.v1.JobService/WatchJob": _OVERSEERS,
    "/toolhub.v1.JobService/CancelJob": frozenset({Role.OPERATOR}),
    "/toolhub.v1.ArtifactService/GetArtifact": frozenset({Role.AUDITOR}),
    "/toolhub.v1.ArtifactService/ReadArtifact": frozenset({Role.AUDITOR}),
}
"""RPCs that other roles may call besides, by path: those who ask for approvals see what becomes of them, and those who
oversee the hub see everybody's jobs and artifacts."""
_NOBODY: frozenset[Role] = frozenset()


class PolicyLayer(Layer):
    """PERMISSION_DENIED when the principal lacks the role of the service; unknown services are refused."""

    def enter(self, method: Method, context: ServicerContext) -> None:
        if method.is_open:
            return
        role = ROLE_OF_SERVICE.get(method.service)
        principal = current_principal()
        if role in principal.roles or ALSO_FOR.get(method.path, _NOBODY) & principal.roles:
            return
        needed = role.value if role else "none"
        raise RpcFailure(
            grpc.StatusCode.PERMISSION_DENIED,
            "ROLE_MISSING",
            f"{principal.id} lacks the role {needed!r} that {method.service} needs; "
            "an operator grants it under `roles` in the policy.",
            {"role": needed, "service": method.service},
        )
