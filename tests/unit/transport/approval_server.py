"""ApprovalService on a real server of loopback, before an `ApprovalHarness`; metadata names the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from tests.unit.runtime.approvals.approval_harness import ANN, EVE, LOCAL, TEAM, ApprovalHarness, an_approval_harness
from toolhub.v1 import approval_service_pb2_grpc
from toolhub_service.domain.call import Principal, Role
from toolhub_service.guards.secrets import Redactor
from toolhub_service.runtime.approvals.watch import ApprovalNews
from toolhub_service.transport.approval_servicer import ApprovalServicer
from toolhub_service.transport.envelope import ValidationLayer
from toolhub_service.transport.front import Front
from toolhub_service.transport.interceptors.admission import TenantShares
from toolhub_service.transport.interceptors.auth import AuthLayer
from toolhub_service.transport.interceptors.errors import ErrorsLayer
from toolhub_service.transport.interceptors.policy import PolicyLayer
from toolhub_service.transport.rpc import Layer, Method, ServicerContext

AUDITOR = Principal("auditor", frozenset({Role.AUDITOR}))
BOTH = Principal("both", frozenset({Role.AGENT, Role.APPROVER}))
PEOPLE = {person.id: person for person in (ANN, EVE, TEAM, LOCAL, AUDITOR, BOTH)}


def by(principal: Principal) -> tuple[tuple[str, str], ...]:
    """The metadata of a call of theirs."""
    return (("authorization", f"Bearer {principal.id}"),)


class NameAuthenticator:
    """An authenticator that believes every name of `PEOPLE`."""

    mode = "api-key"
    advice = "Say who you are."

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        return PEOPLE.get(str(metadata.get("authorization", "")).removeprefix("Bearer "))


class EndedRpcs(Layer):
    """Notifies of ended RPCs."""

    def __init__(self, left: asyncio.Queue[str]) -> None:
        self._left = left

    def leave(self, method: Method, state: Any, context: ServicerContext, error: BaseException | None) -> None:
        self._left.put_nowait(method.name)


@dataclass
class ApprovalHub:
    """Serves until its block is left; a defect fails the test then."""

    harness: ApprovalHarness
    news: ApprovalNews
    address: str
    channel: grpc.aio.Channel
    left: asyncio.Queue[str]
    """Names of RPCs that have ended."""

    @property
    def stub(self) -> Any:
        return approval_service_pb2_grpc.ApprovalServiceStub(self.channel)


@asynccontextmanager
async def approval_hub(
    harness: ApprovalHarness | None = None, *, port: int = 0, redactor: Redactor | None = None
) -> AsyncIterator[ApprovalHub]:
    """`harness` is one that outlives the server, as the store of a hub that is restarted does."""
    harness = harness or an_approval_harness(redactor=redactor)
    crashes: list[Exception] = []
    news = ApprovalNews(harness.store)
    left: asyncio.Queue[str] = asyncio.Queue()
    layers = [
        EndedRpcs(left),
        ErrorsLayer(lambda _, error: crashes.append(error)),
        AuthLayer([NameAuthenticator()]),
        PolicyLayer(TenantShares(1_000)),
        ValidationLayer(),
    ]
    server = grpc.aio.server()
    governed: Any = Front(layers)
    server.add_generic_rpc_handlers((governed,))
    approval_service_pb2_grpc.add_ApprovalServiceServicer_to_server(ApprovalServicer(harness.approvals, news), governed)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield ApprovalHub(harness, news, address, channel, left)
    finally:
        news.close()
        await server.stop(0.2)
        assert not crashes
