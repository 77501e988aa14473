"""The endpoint as an OAuth 2.1 protected resource: tells clients who issues its tokens, and why one is refused.

RFC 9728 (protected resource metadata), RFC 6750 §3 (challenges), RFC 8707 (the resource is the audience).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from toolhub_service.domain.json import JsonValue
from toolhub_service.schema import canonical_json

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
Header = tuple[bytes, bytes]


class ProtectedResource(msgspec.Struct, frozen=True):
    """The hub's metadata of its own endpoint."""

    url: str
    """The URL that clients use; `resource` of the metadata and audience of the tokens, exactly."""
    issuers: Sequence[str]
    scopes: Sequence[str] = ()
    """All that mean something here."""
    required_scopes: Sequence[str] = ()
    """Scopes that a token must have to be accepted."""
    logins: Sequence[Mapping[str, str]] = ()
    """By issuer: `client_id` and `resource` by which `toolhub login` gets tokens for the hub's gRPC address."""

    @property
    def metadata_url(self) -> str:
        """RFC 9728 §3.1: between host and path."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"

    def describes(self, path: str, endpoint: str) -> bool:
        """Return whether the metadata is served there: for the endpoint, for its path behind a proxy, and at the
        root."""
        return path in (WELL_KNOWN, f"{WELL_KNOWN}{endpoint}", f"{WELL_KNOWN}{urlsplit(self.url).path.rstrip('/')}")

    def metadata(self) -> bytes:
        document: dict[str, JsonValue] = {
            "resource": self.url,
            "authorization_servers": list(self.issuers),
            "bearer_methods_supported": ["header"],
            "resource_name": "tool-hub",
        }
        if self.scopes:
            document["scopes_supported"] = list(self.scopes)
        if self.logins:  # RFC 9728 §2 allows additional members
            document["toolhub_logins"] = [dict(each) for each in self.logins]
        return canonical_json.dumps(document)


# It is not secret, and browser clients read it before they have a credential.
METADATA_HEADERS: Final[Sequence[Header]] = (
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=300"),
)


def challenge(
    resource: ProtectedResource | None, status: int, *, is_missing: bool = False, scope: str = "", message: str = ""
) -> list[Header]:
    """Return WWW-Authenticate of a refusal; none when another token would not help."""
    if status != 401 and not (status == 403 and scope):
        return []
    words = [("realm", "tool-hub")]
    if status == 403:
        words += [("error", "insufficient_scope"), ("scope", scope)]
    # RFC 6750 §3.1: a request without any credential gets no error code.
    elif not is_missing:
        words.append(("error", "invalid_token"))
    if resource is not None:
        if status == 401 and not is_missing:
            words.append(("error_description", message))
        if status == 401 and resource.required_scopes:
            words.append(("scope", " ".join(resource.required_scopes)))
        words.append(("resource_metadata", resource.metadata_url))
    parameters = ", ".join(f'{name}="{_quotable(value)}"' for name, value in words)
    return [(b"www-authenticate", f"Bearer {parameters}".encode())]


def _quotable(text: str) -> str:
    """What may stand in error_description (RFC 6750 §3), and so in any of them."""
    return "".join(sign if sign.isascii() and sign.isprintable() and sign not in '"\\' else "'" for sign in text)
