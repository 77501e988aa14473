"""Tokens of logins: readable by their owner only, one file for each context, refreshed by one process at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from toolhub_service.cli.connection.contexts import Login, read_private
from toolhub_service.cli.connection.hub_options import folder

if TYPE_CHECKING:
    from toolhub_service.cli.connection.oauth import Tokens

# A token is refreshed this long before it expires, or in the last fifth of its life, so that it outlives a call.
_MARGIN_S: Final = 60.0
_MARGIN_OF_LIFE: Final = 0.2
_SIZE_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Held:
    """An access token."""

    token: str = field(repr=False)
    expires_at: float = 0.0
    """Seconds since 1970; 0: the issuer does not say."""
    lifetime_s: float = 0.0

    def is_fresh(self, now: float) -> bool:
        """Return whether it need not be refreshed."""
        return not self.expires_at or now < self.expires_at - min(_MARGIN_S, self.lifetime_s * _MARGIN_OF_LIFE)

    def is_good(self, now: float) -> bool:
        return not self.expires_at or now < self.expires_at


@dataclass(frozen=True, slots=True)
class Session:
    """A login that is in force."""

    issuer: str
    client_id: str
    token_endpoint: str
    revocation_endpoint: str
    resource: str
    mcp_resource: str
    refresh_token: str = field(default="", repr=False)
    access: Mapping[str, Held] = field(default_factory=dict)
    """Access tokens by resource."""

    def with_tokens(self, resource: str, tokens: Tokens) -> Session:
        """Return the login with an answer of the issuer, which may have replaced the refresh token (RFC 6749 §6)."""
        expires_at = time.time() + tokens.lifetime_s if tokens.lifetime_s else 0.0
        access = {**self.access, resource: Held(tokens.access_token, expires_at, tokens.lifetime_s)}
        return replace(self, refresh_token=tokens.refresh_token or self.refresh_token, access=access)


class LoginNeeded(click.ClickException):
    """There is no login, or it has ended."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{why} Log in: toolhub --context {name} login")


def _file(name: str) -> Path:
    return folder() / "tokens" / f"{name}.json"


def session_of(name: str) -> Session | None:
    """Return the login; None: the user is not logged in. Raises click.ClickException for a loose or broken file."""
    path = _file(name)
    if not path.exists():
        return None
    text = read_private(path, _SIZE_MAX_BYTES, f"The tokens of the context {name} are in {path}")
    try:
        document = json.loads(text)
        access = {resource: Held(**held) for resource, held in document.pop("access").items()}
        return Session(**document, access=access)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LoginNeeded(name, f"{path} holds no tokens that this version can read.") from None


@contextmanager
def _hold_lock(name: str) -> Iterator[None]:
    """Hold a lock: no other process refreshes, stores or revokes the tokens meanwhile."""
    from toolhub_service.app.config_files.editing import lock_for_edit

    try:
        with lock_for_edit(_file(name)):
            yield
    except OSError as failed:
        raise click.ClickException(f"{failed.filename or _file(name)}: {failed.strerror}") from failed


def _put(name: str, session: Session) -> None:
    from toolhub_service.app.config_files.editing import replace_text

    replace_text(_file(name), json.dumps(asdict(session)), mode=0o600)


def keep(name: str, session: Session) -> None:
    """Replace the login of the context. Raises click.ClickException."""
    with _hold_lock(name):
        _put(name, session)


def forget(name: str) -> None:
    """Remove the tokens of the context, if any, from this machine."""
    path = _file(name)
    if path.exists():
        with _hold_lock(name):
            path.unlink(missing_ok=True)


def access_token(name: str, login: Login, *, for_mcp: bool = False) -> str:
    """Return a currently valid access token, refreshed if it is about to expire; `for_mcp`: for the MCP endpoint.

    Raises LoginNeeded, and IssuerUnreachable when it has expired and the issuer does not answer.
    """
    session = _session(name, login)
    resource = (session.mcp_resource if for_mcp else "") or session.resource
    held = session.access.get(resource)
    if held is not None and held.is_fresh(time.time()):
        return held.token
    with _hold_lock(name):
        session = _session(name, login)  # another process may have refreshed it, and used up the refresh token
        held = session.access.get(resource)
        if held is not None and held.is_fresh(time.time()):
            return held.token
        return _refresh_token(name, session, resource, held)


def _session(name: str, login: Login) -> Session:
    session = session_of(name)
    if session is None:
        raise LoginNeeded(name, f"Nobody is logged in to {name}.")
    if login.issuer not in ("", session.issuer) or login.client_id not in ("", session.client_id):
        raise LoginNeeded(name, f"The login to {name} is that of another issuer or client.")
    return session


def _refresh_token(name: str, session: Session, resource: str, held: Held | None) -> str:
    from toolhub_service.cli.connection.oauth import GrantRefused, IssuerUnreachable, open_http, request_tokens

    if not session.refresh_token:
        if held is not None and held.is_good(time.time()):
            return held.token
        why = f"The token for {name} has expired, and {session.issuer} gave none to refresh it with."
        raise LoginNeeded(name, why if held else f"{session.issuer} gave no token for {resource}.")
    form: dict[str, Any] = {"grant_type": "refresh_token", "refresh_token": session.refresh_token}
    form |= {"client_id": session.client_id, **({"resource": resource} if resource else {})}
    try:
        with open_http() as http:
            tokens = request_tokens(http, session.issuer, session.token_endpoint, form)
    except IssuerUnreachable:
        if held is not None and held.is_good(time.time()):
            return held.token
        raise
    except GrantRefused as refused:
        if refused.error != "invalid_grant":
            raise
        # Expired, revoked, or used by another client: then the issuer has ended the whole login (RFC 9700 §4.14).
        _file(name).unlink(missing_ok=True)
        raise LoginNeeded(name, f"{session.issuer} has ended the login to {name}.") from refused
    _put(name, session.with_tokens(resource, tokens))
    return tokens.access_token


def log_out(name: str) -> str:
    """Revoke the tokens at the issuer and forget them; return why the issuer did not revoke them, or an empty text.

    Raises LoginNeeded when the user is not logged in.
    """
    from toolhub_service.cli.connection.oauth import IssuerUnreachable, open_http, revoke_token

    with _hold_lock(name):
        session = session_of(name)
        if session is None:
            return ""
        _file(name).unlink(missing_ok=True)
    if not session.revocation_endpoint:
        return f"{session.issuer} revokes no tokens."
    tokens = [(held.token, "access_token") for held in session.access.values()]
    with open_http() as http:
        try:
            is_revoked = not session.refresh_token or revoke_token(
                http, session.revocation_endpoint, session.client_id, session.refresh_token, "refresh_token"
            )
            for token, kind in tokens:  # of no use where they are signed documents, which many issuers say by an error
                with suppress(IssuerUnreachable):
                    revoke_token(http, session.revocation_endpoint, session.client_id, token, kind)
        except IssuerUnreachable as away:
            return away.message
    return "" if is_revoked else f"{session.issuer} did not revoke the login."


def expiry_of(session: Session) -> datetime | None:
    """Return when the token for the hub's gRPC address expires; None if the issuer does not say."""
    held = session.access.get(session.resource)
    return datetime.fromtimestamp(held.expires_at, UTC) if held and held.expires_at else None


def state_text(name: str) -> str:
    """Return the state of the context's login, for people."""
    try:
        session = session_of(name)
    except click.ClickException as broken:
        return broken.message
    if session is None:
        return f"logged out; toolhub --context {name} login"
    until = expiry_of(session)
    when = f"token until {until.astimezone():%Y-%m-%d %H:%M:%S}" if until else "token without a named end"
    return f"{when}, {'refreshed by itself' if session.refresh_token else 'then log in again'}"
