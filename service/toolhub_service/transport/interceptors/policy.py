"""Who may call which RPC: one role per service, and further roles for some RPCs; also each tenant's share of the calls
in flight and each principal's of the watch streams. Step 4 (runtime/steps.py) decides what a tool call may do."""

from __future__ import annotations

from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.transport.interceptors.admission import WATCHES, TenantShares
from toolhub_service.transport.rpc import CALLER, Layer, Method, ServicerContext
from toolhub_service.transport.status import RpcFailure

ROLE_OF_SERVICE: dict[str, Role] = {
    "toolhub.v1.ToolService": Role.AGENT,
    "toolhub.v1.JobService": Role.AGENT,
    "toolhub.v1.ArtifactService": Role.AGENT,
    "toolhub.v1.RegistryService": Role.OPERATOR,
    "toolhub.v1.ApprovalService": Role.APPROVER,
    "toolhub.v1.AuditService": Role.AUDITOR,
    "toolhub.v1.CredentialService": Role.AGENT,
}
_OVERSEERS = frozenset({Role.OPERATOR, Role.AUDITOR})
ALSO_FOR: dict[str, frozenset[Role]] = {
    "/toolhub.v1.ToolService/GetServerInfo": frozenset(Role),
    "/toolhub.v1.ApprovalService/ListApprovals": frozenset({Role.AGENT}),
    "/toolhub.v1.ApprovalService/GetApproval": frozenset({Role.AGENT}),
    "/toolhub.v1.ApprovalService/WatchApprovals": frozenset({Role.AGENT}),
    "/toolhub.v1.JobService/GetJob": _OVERSEERS,
    "/toolhub.v1.JobService/ListJobs": _OVERSEERS,
    "/toolhub.v1.JobService/WatchJob": _OVERSEERS,
    "/toolhub.v1.JobService/WatchJobs": _OVERSEERS,
    "/toolhub.v1.JobService/CancelJob": frozenset({Role.OPERATOR}),
    "/toolhub.v1.ArtifactService/GetArtifact": frozenset({Role.AUDITOR}),
    "/toolhub.v1.ArtifactService/ReadArtifact": frozenset({Role.AUDITOR}),
    "/toolhub.v1.ArtifactService/ListArtifacts": frozenset({Role.AUDITOR}),
    "/toolhub.v1.CredentialService/ListCredentials": frozenset({Role.OPERATOR}),
    "/toolhub.v1.CredentialService/RevokeCredential": frozenset({Role.OPERATOR}),
}
"""RPCs that other roles may call, too, by path: those who request approvals see the decisions, and those who oversee
the hub see everybody's jobs and artifacts."""
_NOBODY: frozenset[Role] = frozenset()


class PolicyLayer(Layer):
    """Refuses with PERMISSION_DENIED when the principal lacks the role of the service, or the service is unknown. Where
    there are tenants, each has a share of the calls in flight."""

    def __init__(self, shares: TenantShares) -> None:
        self._shares = shares

    def concerns(self, hook: str, method: Method) -> bool:
        return super().concerns(hook, method) and not method.is_open

    def enter(self, method: Method, context: ServicerContext) -> None:
        principal = CALLER.get().principal
        if ROLE_OF_SERVICE.get(method.service) not in principal.roles:
            check_role(method, principal)
        if principal.tenancy is not None and method.name not in WATCHES:
            self._shares.take(principal.tenancy.name)


def check_role(method: Method, principal: Principal) -> None:
    """Raises RpcFailure when no role of the principal permits the RPC."""
    role = ROLE_OF_SERVICE.get(method.service)
    if role not in principal.roles and not ALSO_FOR.get(method.path, _NOBODY) & principal.roles:
        raise _refusal(method, principal, role)


def roles_used(method: Method, principal: Principal) -> frozenset[Role]:
    """Return the principal's roles that permit the RPC: what a stream shows may depend on each of them."""
    role = ROLE_OF_SERVICE.get(method.service)
    return (ALSO_FOR.get(method.path, _NOBODY) | {role}) & principal.roles if role else _NOBODY


def check_roles_kept(method: Method, principal: Principal, used: frozenset[Role]) -> None:
    """For a stream that was opened with the roles `used`: raises RpcFailure when one of them has been withdrawn."""
    check_role(method, principal)
    if lost := used - principal.roles:
        (name, *_) = sorted(role.value for role in lost)
        raise RpcFailure(
            Reason.ROLE_MISSING,
            f"{principal.id} no longer has the role {name!r}, with which this stream was opened: "
            "open the stream again.",
            {"role": name, "service": method.service},
        )


def _refusal(method: Method, principal: Principal, role: Role | None) -> RpcFailure:
    needed = role.value if role else "none"
    if not principal.roles:
        return RpcFailure(
            Reason.PRINCIPAL_UNKNOWN,
            f"The policy grants {principal.id} nothing. An operator adds it under `grants` or `roles` in policy.yaml.",
            {"role": needed, "service": method.service},
        )
    return RpcFailure(
        Reason.ROLE_MISSING,
        f"{principal.id} lacks the role {needed!r}, which {method.service} requires; "
        "an operator grants it under `roles` in the policy.",
        {"role": needed, "service": method.service},
    )
