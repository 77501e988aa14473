"""CredentialService: callers' own credentials of sources, and logins of sources themselves. Secrets are sealed when
they come in and are never returned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from toolhub.v1 import credential_service_pb2 as pb
from toolhub.v1 import credential_service_pb2_grpc
from toolhub_service.credentials.vault import Vault, key_for, login_key
from toolhub_service.domain.call import Principal, Role
from toolhub_service.domain.credential import CredentialKey, StoredCredential
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.event import Event, EventType
from toolhub_service.domain.ports import AuditLog, Clock
from toolhub_service.stores.credential_records import credential_id
from toolhub_service.transport.convert.payload import timestamp
from toolhub_service.transport.page_tokens import page_limit, page_of, read_cursor
from toolhub_service.transport.rpc import ServicerContext, current_principal
from toolhub_service.transport.status import RpcFailure


@dataclass(slots=True)
class CredentialServicer(credential_service_pb2_grpc.CredentialServiceServicer):
    vault: Vault
    audit: AuditLog
    clock: Clock
    read: Callable[[str], Awaitable[None]]
    """Reads a source that waited for the credential."""

    async def SetCredential(
        self, request: pb.SetCredentialRequest, context: ServicerContext
    ) -> pb.SetCredentialResponse:
        stored = await self.vault.set_header(current_principal(), request.source, request.value)
        return pb.SetCredentialResponse(credential=await self._note_stored(stored))

    async def BeginLogin(self, request: pb.BeginLoginRequest, context: ServicerContext) -> pb.BeginLoginResponse:
        if request.for_source:
            _check_operator("log a source in")
        url, login = await self.vault.begin_login(
            current_principal(), request.source, request.redirect_uri, for_source=request.for_source
        )
        return pb.BeginLoginResponse(authorization_url=url, login=login)

    async def CompleteLogin(
        self, request: pb.CompleteLoginRequest, context: ServicerContext
    ) -> pb.CompleteLoginResponse:
        if request.for_source:
            _check_operator("log a source in")
        stored = await self.vault.complete_login(
            current_principal(),
            request.login,
            request.code,
            request.state,
            request.issuer,
            for_source=request.for_source,
        )
        return pb.CompleteLoginResponse(credential=await self._note_stored(stored))

    async def ListCredentials(
        self, request: pb.ListCredentialsRequest, context: ServicerContext
    ) -> pb.ListCredentialsResponse:
        principal = current_principal()
        if request.everybody:
            _check_operator("see whose credentials exist")
        cursor = read_cursor(request.page_token)
        limit = page_limit(request.page_size)
        found = await self.vault.page(
            principal,
            everybody=request.everybody,
            source=request.source,
            after=cursor and cursor[:2],
            limit=limit + 1,
        )
        page, token = page_of(found, limit, lambda last: (last.changed_at_unix_ms, credential_id(last.key), 0))
        return pb.ListCredentialsResponse(credentials=map(from_credential, page), next_page_token=token)

    async def RevokeCredential(
        self, request: pb.RevokeCredentialRequest, context: ServicerContext
    ) -> pb.RevokeCredentialResponse:
        principal = current_principal()
        key = key_for(principal, request.source)
        if request.principal:
            named = CredentialKey(request.tenant, request.principal, request.source)
            if named != key:
                _check_operator("revoke somebody else's credentials")
            key = named
        if request.of_source:
            _check_operator("end the login of a source")
            key = login_key(request.source)
        await self.vault.read_record(key, principal)
        await _note(
            self.audit,
            self.clock,
            EventType.CREDENTIAL_REVOKED,
            principal,
            {"source": key.source, "of": key.principal or "the source", "tenant": key.tenant},
        )
        return pb.RevokeCredentialResponse(revoked_upstream=await self.vault.revoke(key))

    async def _note_stored(self, stored: StoredCredential) -> pb.Credential:
        await note_given(self.audit, self.clock, stored, current_principal())
        await self.read(stored.source)
        return from_credential(stored)


async def note_given(audit: AuditLog, clock: Clock, stored: StoredCredential, by: Principal) -> None:
    """Record that a credential was set, or a login completed, by that caller."""
    attributes = {"source": stored.source, "kind": stored.kind.value, "of": "" if stored.principal else "the source"}
    await _note(audit, clock, EventType.CREDENTIAL_SET, by, attributes)


async def _note(audit: AuditLog, clock: Clock, type: EventType, by: Principal, attributes: dict[str, str]) -> None:
    kept = {name: value for name, value in attributes.items() if value}
    await audit.append_durably(
        Event(type=type, at_unix_ms=clock.unix_ms(), principal=by.id, outcome="ok", attributes=kept)
    )


def from_credential(stored: StoredCredential) -> pb.Credential:
    return pb.Credential(
        source=stored.source,
        principal=stored.principal,
        tenant=stored.tenant,
        kind=pb.CredentialKind.Value(f"CREDENTIAL_KIND_{stored.kind.value}"),
        state=pb.CredentialState.Value(f"CREDENTIAL_STATE_{stored.state.value}"),
        created_at=timestamp(stored.created_at_unix_ms),
        changed_at=timestamp(stored.changed_at_unix_ms),
        expires_at=timestamp(stored.expires_at_unix_ms),
        scopes=stored.scopes,
    )


def _check_operator(to_do: str) -> None:
    if Role.OPERATOR not in current_principal().roles:
        raise RpcFailure(Reason.ROLE_MISSING, f"Only operators may {to_do}.", {"role": Role.OPERATOR.value})
