"""Assertions as an authorization server sees them: signed by the client, for it alone, each once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from urllib.parse import parse_qs

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.unit.adapters.mcp.login.test_client_credentials import AS, URL, AuthHarness, post
from tests.unit.adapters.mcp.mock_server import sending_to
from toolhub_service.adapters.mcp.kind import HttpTerms, McpTerms, OAuthTerms
from toolhub_service.adapters.mcp.login.client_credentials import AuthorizedTransport, Tokens
from toolhub_service.adapters.mcp.login.client_key import ASSERTION_TYPE, ClientKey
from toolhub_service.adapters.mcp.messages.http import place_of
from toolhub_service.adapters.mcp.transports.http import BoundedTransport

TOKEN_URL = f"{AS}/token"
P256 = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)


def pem(key: PrivateKeyTypes, encryption: KeySerializationEncryption | None = None) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()).decode()


KEY = pem(P256)
SECRET_LINES = KEY.splitlines()[1:-1]


class SignedAuthHarness(AuthHarness):
    """Its authorization server takes nothing but assertions of the hub, for `audience`, each once."""

    def __init__(self, audience: str = AS) -> None:
        super().__init__()
        self.audience = audience
        self.claims: list[dict[str, object]] = []
        self.metadata["token_endpoint_auth_methods_supported"] = ["private_key_jwt"]

    def _token(self) -> httpx2.Response:
        form = parse_qs(self.requests[-1].content.decode())
        assert form["client_assertion_type"] == [ASSERTION_TYPE]
        assert not {"client_id", "client_secret"} & set(form)
        assert "authorization" not in self.requests[-1].headers
        (assertion,) = form["client_assertion"]
        need = ["iss", "sub", "aud", "jti", "iat", "exp"]
        claims = jwt.decode(
            assertion, P256.public_key(), ["ES256"], audience=self.audience, issuer="hub", options={"require": need}
        )
        assert claims["sub"] == "hub"
        assert claims["jti"] not in [known["jti"] for known in self.claims]
        assert abs(claims["iat"] - time.time()) < 60
        assert 0 < claims["exp"] - claims["iat"] <= 300
        self.claims.append(claims)
        return super()._token()


def signing(world: AuthHarness, *, token_url: str = "", audience: str = "") -> AuthorizedTransport:
    oauth = OAuthTerms("hub", token_url=token_url, private_key=KEY, audience=audience)
    bounded = BoundedTransport(
        sending_to(world), frozenset(place_of(url).origin for url in (URL, AS)), 10_000, lambda _: None
    )
    return AuthorizedTransport(bounded, Tokens(oauth, URL))


async def test_a_client_with_a_key_shows_an_assertion_for_the_issuer_that_was_discovered() -> None:
    world = SignedAuthHarness()
    assert await post(signing(world)) == 200
    assert [claims["aud"] for claims in world.claims] == [AS]
    (asked,) = world.asked("/token")
    form = parse_qs(asked.content.decode())
    assert (form["grant_type"], form["resource"], form["scope"]) == (["client_credentials"], [URL], ["a"])


async def test_each_token_request_carries_an_assertion_of_its_own() -> None:
    world = SignedAuthHarness()
    client = signing(world)
    assert await post(client) == 200
    world.good = "revoked"
    assert await post(client) == 200
    assert len({claims["jti"] for claims in world.claims}) == 2


@pytest.mark.parametrize(("named", "audience"), [("", TOKEN_URL), (AS, AS)])
async def test_the_audience_is_the_operators_token_endpoint_or_setting(named: str, audience: str) -> None:
    world = SignedAuthHarness(audience)
    assert await post(signing(world, token_url=TOKEN_URL, audience=named)) == 200
    assert len(world.claims) == 1


@pytest.mark.promise("mcp.credentials-stay")
async def test_a_server_without_resource_metadata_gets_no_assertion_for_another_issuer_than_itself() -> None:
    world = SignedAuthHarness("https://mcp.example")
    world.resource = {}
    world.other_metadata = {"issuer": AS, "token_endpoint": "https://mcp.example/token"}
    assert await post(signing(world)) == 401
    assert not world.asked("/token")
    world.other_metadata["issuer"] = "https://mcp.example"
    assert await post(signing(world)) == 200


@pytest.mark.parametrize(
    ("key", "declared", "algorithm"),
    [
        (P256, "auto", "ES256"),
        (P256, "ES256", "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "auto", "ES384"),
        (ec.generate_private_key(ec.SECP521R1()), "auto", "ES512"),
        (RSA, "auto", "RS256"),
        (RSA, "PS384", "PS384"),
        (ed25519.Ed25519PrivateKey.generate(), "auto", "EdDSA"),
    ],
)
def test_every_sound_key_signs_by_the_algorithm_that_fits_it(
    key: PrivateKeyTypes, declared: str, algorithm: str
) -> None:
    assertion = ClientKey("hub", pem(key), declared).assertion(AS)
    assert jwt.get_unverified_header(assertion)["alg"] == algorithm
    public = key.public_key()
    assert not isinstance(public, x25519.X25519PublicKey)
    assert jwt.decode(assertion, public, [algorithm], audience=AS)["iss"] == "hub"  # type: ignore[arg-type]


@pytest.mark.promise("secrets.nowhere")
@pytest.mark.parametrize(
    ("make", "algorithm", "expected"),
    [
        (lambda: "\n".join(SECRET_LINES), "auto", "not a PEM private key"),
        (lambda: KEY.replace(SECRET_LINES[1], SECRET_LINES[1][::-1]), "auto", "not a PEM private key"),
        (lambda: pem(P256, BestAvailableEncryption(b"pw")), "auto", "encrypted with a password"),
        (
            lambda: P256.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode(),
            "auto",
            "not a PEM private key",
        ),
        (lambda: "ключ", "auto", "not a PEM private key"),
        (lambda: pem(x25519.X25519PrivateKey.generate()), "auto", "cannot sign assertions"),
        (lambda: pem(ec.generate_private_key(ec.SECP256K1())), "auto", "use P-256"),
        (lambda: pem(rsa.generate_private_key(65537, 1024)), "auto", "1024 bits"),
        (lambda: KEY, "RS256", "cannot sign with RS256: it is one for ES256"),
        (lambda: KEY, "ES384", "cannot sign with ES384"),
    ],
)
def test_a_key_that_is_none_is_refused_without_a_word_of_it(
    make: Callable[[], str], algorithm: str, expected: str
) -> None:
    key = make()
    with pytest.raises(ValueError, match=expected) as refusal:
        Tokens(OAuthTerms("hub", private_key=key, signing_algorithm=algorithm), URL)
    assert refusal.value.__cause__ is None
    assert not any(line in str(refusal.value) for line in key.splitlines())


@pytest.mark.promise("secrets.nowhere")
async def test_the_key_and_its_assertions_appear_in_no_text(caplog: pytest.LogCaptureFixture) -> None:
    world = SignedAuthHarness()
    with caplog.at_level(logging.DEBUG):
        client = signing(world)
        assert await post(client) == 200
    (asked,) = world.asked("/token")
    (assertion,) = parse_qs(asked.content.decode())["client_assertion"]
    oauth = OAuthTerms("hub", private_key=KEY)
    terms = McpTerms("x", HttpTerms(URL, oauth=oauth))
    shown = f"{oauth!r} {terms!r} {client!r} {client._tokens!r} {client._tokens._key!r} {caplog.text}"
    assert assertion not in shown
    assert not any(line in shown for line in SECRET_LINES)
    assert {KEY, *SECRET_LINES} <= set(terms.secrets)
