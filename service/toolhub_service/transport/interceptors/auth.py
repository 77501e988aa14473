"""Identity, only from a verified credential: the first authenticator that recognises one decides.

The kinds of credential are none at all on loopback, API keys, and tokens of configured issuers. RPCs that are refused
for a credential or a role are reported to an observer, wherever the refusal is raised: at the start, at a message of a
stream, in a servicer.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec

from toolhub_service.domain.call import Principal, SubjectToken
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.ports import AccessObserver
from toolhub_service.faces.table import FACE_HEADER
from toolhub_service.identity.api_keys import KEY_PREFIX, KeyRefused, KnownKeys, key_id_of
from toolhub_service.identity.token import TokenRefused, principal_of
from toolhub_service.identity.tokens import KeysNeeded, Tokens
from toolhub_service.telemetry.counters import Count, SharedCount
from toolhub_service.transport.interceptors.policy import check_roles_kept, roles_used
from toolhub_service.transport.rpc import CALLER, Caller, Layer, Method, ServicerContext, caller_id
from toolhub_service.transport.status import RpcFailure

CREDENTIAL_ENTRIES = ("authorization", "x-api-key")
"""Metadata keys that may carry a credential."""


class Authenticator(Protocol):
    """One kind of credential."""

    @property
    def mode(self) -> str:
        """Its name in `auth.modes`."""
        ...

    @property
    def advice(self) -> str:
        """How a caller presents this credential."""
        ...

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        """Return the caller; None when the RPC carries no such credential.

        Raises RpcFailure for an invalid credential, KeysNeeded where that cannot be decided yet.
        """
        ...


def _differ(metadata: Mapping[str, str | bytes]) -> bool:
    """Return whether both entries are present with different credentials."""
    bearer, key = (str(metadata.get(entry, "")) for entry in CREDENTIAL_ENTRIES)
    return bool(bearer and key) and key != (bearer[7:].strip() if bearer[:7].lower() == "bearer " else bearer)


class StreamRights:
    """What a stream was opened with: a valid credential, and the roles that the policy gave."""

    __slots__ = ("_authenticate", "_caller", "_method", "_roles")

    def __init__(self, method: Method, caller: Caller, authenticate: Callable[[], Principal | None]) -> None:
        self._method = method
        self._caller = caller
        self._authenticate = authenticate
        self._roles = roles_used(method, caller.principal)

    def check(self) -> None:
        """Raises RpcFailure when the credential is no longer valid or the current policy no longer permits the
        stream."""
        try:
            principal = self._authenticate()
        except KeysNeeded as needed:
            needed.begin()  # the next message has the keys: hooks never wait, and the token has not expired
            return
        # A policy describes a principal once, so another object means another policy.
        if principal is not None and principal is not self._caller.principal:
            check_roles_kept(self._method, principal, self._roles)
            if principal.tenancy != self._caller.principal.tenancy:  # the stream was opened for the earlier tenant
                message = f"The tenant of {principal.id}, or what it sees, is another since the stream was opened."
                raise RpcFailure(Reason.ROLE_MISSING, f"{message} Open it again.")
            self._caller.principal = principal


Counted = Callable[[str, str, str], Count | SharedCount]
"""Returns the counter for mode, issuer and outcome (`accepted` or `refused`)."""

_COUNTS_MAX: Final = 256


class AuthLayer(Layer):
    """Refuses with UNAUTHENTICATED and advice when no authenticator knows the caller."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        *,
        needs_tls_1_3: bool = False,
        counted: Counted = lambda *_: Count(),
    ) -> None:
        """`needs_tls_1_3` refuses RPCs over an older version, because gRPC's Python API cannot refuse the handshake."""
        self._authenticators = tuple(authenticators)
        self._needs_tls_1_3 = needs_tls_1_3
        self._counted = counted
        self._counts: dict[tuple[str, str, str], Count | SharedCount] = {}

    def concerns(self, hook: str, method: Method) -> bool:
        """A unary RPC's one message follows its credential at once, and an accepted upload is answered, so neither is
        checked again."""
        asked_once = {"unary": ("on_request", "on_response"), "client_stream": ("on_response",)}
        return super().concerns(hook, method) and not method.is_open and hook not in asked_once.get(method.kind, ())

    def enter(self, method: Method, context: ServicerContext) -> StreamRights | None:
        """Return, for a stream, the rights to check at each message. Raises KeysNeeded too: then call
        `enter_again`."""
        if self._needs_tls_1_3 and list(context.auth_context().get("ssl_tls_version", ())) != [b"TLSv1.3"]:
            message = "The connection has an older version of TLS than this hub takes: connect with TLS 1.3."
            raise RpcFailure(Reason.CREDENTIAL_REFUSED, message)
        sent = context.invocation_metadata() or ()
        metadata = dict(sent)
        is_doubled = len(metadata) < len(sent) and sum(key in CREDENTIAL_ENTRIES for key, _ in sent) > 1
        if is_doubled or ("x-api-key" in metadata and _differ(metadata)):
            raise RpcFailure(Reason.CREDENTIAL_REFUSED, "Several credentials were sent; send one.")
        for authenticator in self._authenticators:
            try:
                principal = authenticator.authenticate(metadata, context)
            except RpcFailure as refused:
                self._count_of(authenticator.mode, refused.metadata.get("issuer", ""), "refused").value += 1
                raise
            if principal is not None:
                # Looked up in place: each further function call costs every RPC.
                count = self._counts.get((authenticator.mode, principal.issuer, "accepted"))
                if count is None:
                    count = self._count_of(authenticator.mode, principal.issuer, "accepted")
                count.value += 1
                caller = Caller(principal, str(metadata.get(FACE_HEADER, "")))
                CALLER.set(caller)
                if method.kind == "unary":
                    return None
                return StreamRights(method, caller, partial(authenticator.authenticate, metadata, context))
        self._count_of("none", "", "refused").value += 1
        raise self._unknown(metadata)

    def _unknown(self, metadata: Mapping[str, str | bytes]) -> RpcFailure:
        """Return the refusal of a credential that no authenticator accepts, or of an RPC without one."""
        advice = " ".join(authenticator.advice for authenticator in self._authenticators)
        if any(entry in metadata for entry in CREDENTIAL_ENTRIES):
            message = f"This hub does not accept this kind of credential: leave it out. {advice}".rstrip()
            return RpcFailure(Reason.CREDENTIAL_REFUSED, message)
        return RpcFailure(Reason.CREDENTIAL_MISSING, f"The request has no credential. {advice}")

    def _count_of(self, mode: str, issuer: str, outcome: str) -> Count | SharedCount:
        if (mode, issuer, outcome) not in self._counts:
            if len(self._counts) >= _COUNTS_MAX:  # a SPIRE agent may add any number of trust domains
                issuer = "others"
            self._counts[mode, issuer, outcome] = self._counted(mode, issuer, outcome)
        return self._counts[mode, issuer, outcome]

    def on_request(self, method: Method, state: StreamRights, message: Any) -> None:
        """End a stream at its next message when the rights that opened it were withdrawn."""
        state.check()

    def on_response(self, method: Method, state: StreamRights) -> None:
        """Check as `on_request` does, for streams that only send responses."""
        state.check()


_WAITS_MAX: Final = 3


async def enter_again(needed: KeysNeeded, enter: Callable[[ServicerContext], Any], context: ServicerContext) -> Any:
    """Return what `enter` returns, once the keys of a token's issuer have been fetched."""
    for _ in range(_WAITS_MAX):
        await needed.wait()
        try:
            return enter(context)
        except KeysNeeded as again:
            needed = again
    raise _of_token(needed.unmet())


# Kinds of credential

LOCAL = "local"
"""Returns the principal of `insecure-local`."""

DescribePrincipal = Callable[[str], Principal]
"""Returns the roles and rights of a principal under the policy in force."""


class InsecureLocal(msgspec.Struct, frozen=True):
    """Every caller of the loopback address is `local`. The server refuses to start it on any other address."""

    describe: DescribePrincipal
    mode: str = "insecure-local"
    advice: str = ""

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        if ("authorization" in metadata or "x-api-key" in metadata) and credential_in(metadata):
            return None  # a credential that was sent is checked, never ignored
        return self.describe(LOCAL)


class ApiKeys:
    """Authenticates `authorization: Bearer thk_<id>_<secret>` or `x-api-key: thk_<id>_<secret>`."""

    mode = "api-key"
    advice = (
        "Send an API key as `Bearer thk_…` in the metadata entry `authorization`; an operator creates one with "
        "`toolhub keys create NAME`."
    )
    """Worded so that redaction, which every outgoing text passes, does not take a part of it for a header."""

    def __init__(self, known: KnownKeys, issuers: frozenset[str] = frozenset()) -> None:
        """`issuers` are those whose principals no key may represent."""
        self._known = known
        self._issuers = issuers

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        presented = credential_in(metadata)
        if not presented:
            return None
        try:
            stored = self._known.verify(presented)
            if stored.name.partition(":")[0] in self._issuers and ":" in stored.name:
                message = "The API key has the name of a principal whose tokens an issuer makes."
                raise RpcFailure(Reason.CREDENTIAL_REFUSED, f"{message} Make one of another name.")
            return self._known.principal(key_id_of(presented), stored)
        except KeyRefused as refused:
            raise RpcFailure(Reason.CREDENTIAL_REFUSED, refused.message, {"problem": refused.problem}) from None


class BearerTokens:
    """Authenticates `authorization: Bearer <token>` of a configured issuer. Tried before API keys, whose tokens it
    ignores."""

    mode = "jwt"
    advice = "Send an access token of an issuer that the hub knows in the metadata entry `authorization`."

    def __init__(
        self,
        tokens: Tokens,
        describe: DescribePrincipal,
        again: Callable[[Principal], Principal],
        audiences: frozenset[str] | None = None,
    ) -> None:
        """`again` returns a token's principal under the policy in force. `audiences` limits the audiences of tokens;
        None means those of their issuer."""
        self._tokens = tokens
        self._describe = describe
        self._again = again
        self._audiences = audiences

    def authenticate(self, metadata: Mapping[str, str | bytes], context: ServicerContext) -> Principal | None:
        sent = metadata.get("authorization", "")
        if not isinstance(sent, str) or sent[:7].lower() != "bearer ":
            return None
        token = sent[7:].strip()
        if "." not in token or token.startswith(KEY_PREFIX):
            return None
        try:
            verified = self._tokens.verify(token, self._audiences)
        except TokenRefused as refused:
            raise _of_token(refused) from None
        described = self._describe(verified.identity.principal_id)
        if verified.principal is None or verified.described is not described:
            shown = SubjectToken(token, hashlib.sha256(token.encode()).hexdigest())
            known = replace(principal_of(verified.identity), subject_token=shown)
            verified.principal = self._again(known)
            # After the principal: if that fails, the next check must try again.
            verified.described = described
        return verified.principal


def _of_token(refused: TokenRefused) -> RpcFailure:
    named = {"issuer": refused.issuer} if refused.issuer else {}
    if refused.retry_after_s is not None:
        return RpcFailure(Reason.ISSUER_UNREACHABLE, refused.message, named, retry_after_s=refused.retry_after_s)
    if refused.scopes:
        return RpcFailure(Reason.SCOPE_MISSING, refused.message, {"scope": " ".join(sorted(refused.scopes)), **named})
    return RpcFailure(Reason.CREDENTIAL_REFUSED, refused.message, {"problem": refused.problem, **named})


def credential_in(metadata: Mapping[str, str | bytes]) -> str:
    """Return the credential that was sent, if any; one of another scheme unchanged, so that it is refused and not
    overlooked."""
    sent = metadata.get("authorization", "")
    if isinstance(sent, str) and sent:
        return (sent[7:].strip() if sent[:7].lower() == "bearer " else "") or sent
    key = metadata.get("x-api-key", "")
    return key if isinstance(key, str) else ""


# Refusals

REASONS: Final = frozenset(
    {
        Reason.CREDENTIAL_MISSING,
        Reason.CREDENTIAL_REFUSED,
        Reason.ROLE_MISSING,
        Reason.SCOPE_MISSING,
        Reason.PRINCIPAL_UNKNOWN,
    }
)
"""Reports a refusal to the observer."""

_KEY_ID: Final = re.compile(r"thk_[0-9a-f]{8}")
"""Form of ids made by `toolhub keys create`. Any other text might be a mistyped secret."""

_NETWORK_V6: Final = 64
"""Bits of an IPv6 prefix: one subscriber has a whole /64 (RFC 6177), and could be another peer with each RPC."""


class AccessLayer(Layer):
    """Placed outside of the layers that refuse."""

    def __init__(self, observer: AccessObserver) -> None:
        self._observer = observer

    def failure(self, method: Method, context: ServicerContext, error: Exception) -> Exception:
        if not isinstance(error, RpcFailure) or error.reason not in REASONS:
            return error
        metadata = dict(context.invocation_metadata() or ())
        wait_s = self._observer.count_refusal(
            peer_address(context.peer()),
            method.path,
            error.reason.name,
            principal=caller_id(),
            key_id=public_key_id(metadata),
        )
        return replace(error, retry_after_s=wait_s) if wait_s else error


def public_key_id(metadata: Mapping[str, str | bytes]) -> str:
    """Return the public part of the API key that was sent; empty when there is none."""
    found = _KEY_ID.fullmatch(key_id_of(credential_in(metadata)))
    return found.group() if found else ""


def peer_address(peer: str) -> str:
    """Return the address in gRPC's name of a peer (`ipv4:192.0.2.1:5000`, `ipv6:%5B::1%5D:5000`, `unix:`), without its
    port; of IPv6 the /64; `unix` for a socket, and `unknown` for any other name."""
    scheme, _, rest = peer.partition(":")
    if scheme.startswith("unix"):
        return "unix"
    try:
        address = ipaddress.ip_address(unquote(rest).rpartition(":")[0].strip("[]"))
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _NETWORK_V6), strict=False))
