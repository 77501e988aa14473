"""Tokens of an issuer: which are accepted, what they claim, and how long keys and verifications are kept."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from tests.unit.identity.issuer import (
    AUDIENCE,
    ISSUER,
    OTHER_RSA,
    PRIVATE,
    WEAK_RSA,
    Issuer,
    b64,
    public_jwk,
    signed,
)
from toolhub_service.domain.call import ExecContext, Role
from toolhub_service.identity.keys import FetchFailed, check_url, read_keys
from toolhub_service.identity.token import Identity, TokenRefused
from toolhub_service.identity.tokens import KeysNeeded
from toolhub_service.policy.holdings import narrow_permissions


async def identity(issuer: Issuer, token: str) -> Identity:
    return (await issuer.tokens.verify_in_time(token)).identity


async def refusal(issuer: Issuer, token: str) -> TokenRefused:
    with pytest.raises(TokenRefused) as refused:
        await issuer.tokens.verify_in_time(token)
    return refused.value


@pytest.mark.promise("identity.tokens")
async def test_tokens_of_each_algorithm_make_the_principal_of_their_issuer() -> None:
    issuer = Issuer()
    for algorithm in ("RS256", "PS256", "ES256", "EdDSA"):
        found = await identity(issuer, issuer.token(algorithm))
        assert (found.principal_id, found.issuer, found.client_id, found.actors) == ("corp:alice", "corp", "app", ())
    assert issuer.asked == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]
    await identity(issuer, issuer.token(header={"kid": None}))
    chained = issuer.token(act={"sub": "agent-7", "act": {"sub": "gateway"}}, aud=["x", AUDIENCE], typ="Bearer")
    assert (await identity(issuer, chained)).actors == ("corp:agent-7", "corp:gateway")


def attacks(issuer: Issuer) -> Iterator[tuple[str, str, str]]:
    """(what is tried, the token, the problem that is named)"""
    good, now_s = issuer.claims(), issuer.clock.unix_ms() // 1_000
    head = {"alg": "RS256", "kid": "RS256", "typ": "at+jwt"}
    parts = issuer.token().split(".")
    pem = json.dumps(issuer.keys[0]).encode()
    twice = b'{"alg":"none","alg":"RS256","kid":"RS256"}'

    def hs256(secret: bytes) -> str:
        first = f"{b64(json.dumps({**head, 'alg': 'HS256'}).encode())}.{b64(json.dumps(good).encode())}"
        return f"{first}.{b64(hmac.digest(secret, first.encode(), hashlib.sha256))}"

    def forged(**header: Any) -> str:
        return signed({**head, **header}, good, OTHER_RSA, "RS256")

    def header(**changed: Any) -> str:
        return issuer.token(header=changed)

    for name in ("none", "None", "NONE", "nOnE", ""):
        bare = f"{b64(json.dumps({**head, 'alg': name}).encode())}.{parts[1]}"
        yield f"alg {name!r} with a signature", f"{bare}.{parts[2]}", "algorithm"
        yield f"alg {name!r} without one", f"{bare}.", "unsigned"
    yield "no alg", f"{b64(json.dumps({'kid': 'RS256', 'typ': 'at+jwt'}).encode())}.{parts[1]}.{parts[2]}", "algorithm"
    yield (
        "alg that is a list",
        f"{b64(json.dumps({**head, 'alg': ['RS256']}).encode())}.{parts[1]}.{parts[2]}",
        "algorithm",
    )
    yield "HS256 with the public key", hs256(pem), "algorithm"
    yield "HS256 with an empty secret", hs256(b""), "algorithm"
    yield "an algorithm that is not listed", issuer.token("ES384"), "algorithm"
    yield "the key of another algorithm", header(kid="ES256"), "key"
    yield (
        "the signature of another algorithm",
        signed({**head, "alg": "PS256"}, good, PRIVATE["RS256"], "RS256"),
        "signature",
    )
    yield "another's key", forged(), "signature"
    yield "its own key in jwk", forged(jwk=public_jwk(OTHER_RSA, "RS256", "RS256")), "signature"
    yield "its own keys at jku", forged(jku="https://evil.example/keys"), "signature"
    yield "its own keys at jku, by a new name", forged(jku="https://evil.example/keys", kid="mine"), "key"
    yield "its own certificate at x5u", forged(x5u="https://evil.example/cert"), "signature"
    yield "its own certificate in x5c", forged(x5c=["MIIB"]), "signature"
    yield "a path as the key", forged(kid="../../../../dev/null"), "key"
    yield "SQL as the key", forged(kid="' UNION SELECT 'k"), "key"
    yield "a number as the key", header(kid=7), "key"
    yield "a long name of a key", header(kid="k" * 300), "key"
    yield "crit", header(crit=["exp"]), "critical"
    yield "an unencoded payload", header(b64=False), "critical"
    yield "an empty crit", header(crit=[]), "critical"
    yield "the kind JWT", header(typ="JWT"), "type"
    yield "no kind", header(typ=None), "type"
    yield "an ID token by its kind", header(typ="id_token"), "type"
    yield "a logout token", header(typ="logout+jwt"), "type"
    yield "a DPoP proof", header(typ="dpop+jwt"), "type"
    yield "a kind that is no text", header(typ=1), "type"
    yield "an ID token by its nonce", issuer.token(nonce="n"), "id_token"
    yield "an ID token by at_hash", issuer.token(at_hash="h"), "id_token"
    yield "an ID token of Cognito", issuer.token(token_use="id"), "id_token"
    yield "a refresh token of Keycloak", issuer.token(typ="Refresh"), "kind"
    yield "events", issuer.token(events={"logout": {}}), "kind"
    yield "a token bound to a key", issuer.token(cnf={"jkt": "t"}), "bound"
    yield "expired", issuer.token(exp=now_s - 31), "expired"
    yield "expired at the very edge", issuer.token(exp=now_s - 30), "expired"
    yield "no expiry", issuer.token(exp=None), "expiry"
    yield "an expiry that is text", issuer.token(exp=str(now_s + 600)), "malformed"
    yield "an expiry that is true", issuer.token(exp=True), "malformed"
    yield "an expiry that is null", signed(head, {**good, "exp": None}, PRIVATE["RS256"], "RS256"), "malformed"
    yield "an expiry beyond all times", issuer.token(exp=10**15), "malformed"
    yield "too long a life", issuer.token(exp=now_s + 90_000), "lifetime"
    yield "too long a life without a beginning", issuer.token(iat=None, exp=now_s + 90_000), "lifetime"
    yield "not yet", issuer.token(nbf=now_s + 31), "not_yet"
    yield "of the future", issuer.token(iat=now_s + 31), "not_yet"
    yield "another audience", issuer.token(aud="https://other.example"), "audience"
    yield "an audience that begins as ours", issuer.token(aud=f"{AUDIENCE}.evil.example"), "audience"
    yield "ours in other letters", issuer.token(aud=AUDIENCE.upper()), "audience"
    yield "no audience", issuer.token(aud=None), "audience"
    yield "an empty audience", issuer.token(aud=[]), "audience"
    yield "an audience in an object", issuer.token(aud={"x": AUDIENCE}), "audience"
    yield "an audience among numbers", issuer.token(aud=[AUDIENCE, 1]), "audience"
    yield "another issuer", issuer.token(iss="https://evil.example"), "issuer"
    yield "our issuer with a slash", issuer.token(iss=f"{ISSUER}/"), "issuer"
    yield "no issuer", issuer.token(iss=None), "issuer"
    yield "an issuer in a list", issuer.token(iss=[ISSUER]), "issuer"
    yield "no subject", issuer.token(sub=None), "subject"
    yield "an empty subject", issuer.token(sub=""), "subject"
    yield "a subject that is a number", issuer.token(sub=1), "subject"
    yield "a subject of two lines", issuer.token(sub="alice\nlocal"), "subject"
    yield "a subject that looks like another", issuer.token(sub="аlice"), "subject"
    yield "a subject that a policy would take for everybody", issuer.token(sub="*"), "subject"
    yield "an actor of that name", issuer.token(act={"sub": "bot*"}), "actor"
    yield "a long subject", issuer.token(sub="a" * 256), "subject"
    yield "an actor without a name", issuer.token(act={"iss": ISSUER}), "actor"
    yield "actors without an end", issuer.token(act=_nested(9)), "actor"
    yield "a sibling environment", issuer.token(env="staging"), "claim"
    yield "no environment", issuer.token(env=None), "claim"
    yield "without the scope", issuer.token(env="prod", scope="other toolhubx"), "scope"
    yield (
        "claims named twice",
        signed(head, f'{json.dumps(good)[:-1]}, "sub": "root"}}', PRIVATE["RS256"], "RS256"),
        "malformed",
    )
    yield (
        "a header named twice",
        f"{b64(twice)}.{parts[1]}.{parts[2]}",
        "malformed",
    )
    yield "claims in a list", signed(head, "[]", PRIVATE["RS256"], "RS256"), "malformed"
    yield "claims that are no JSON", signed(head, "NaN", PRIVATE["RS256"], "RS256"), "malformed"
    yield "claims with Infinity", signed(head, '{"exp": Infinity}', PRIVATE["RS256"], "RS256"), "malformed"
    yield (
        "other claims under the signature",
        f"{parts[0]}.{b64(json.dumps({**good, 'sub': 'root'}).encode())}.{parts[2]}",
        "signature",
    )
    yield "a signature cut short", f"{parts[0]}.{parts[1]}.{parts[2][:-10]}", "signature"
    yield "padding", f"{parts[0]}.{parts[1]}.{parts[2]}==", "malformed"
    yield "the alphabet of base64", f"{parts[0]}.{parts[1]}.{parts[2][:-4]}+/+/", "malformed"
    yield "white space within", f"{parts[0]}.{parts[1]}. {parts[2]}", "malformed"
    yield "bits beyond the end", f"{parts[0]}.{parts[1]}.{parts[2][:-1]}{_beside(parts[2][-1])}", "malformed"
    yield "two parts", f"{parts[0]}.{parts[1]}", "malformed"
    yield "four parts", f"{'.'.join(parts)}.x", "malformed"
    yield "encrypted", "a.b.c.d.e", "encrypted"
    yield "nothing but dots", "..", "malformed"
    yield "larger than any", f"{'.'.join(parts)}{'A' * 17_000}", "too_large"
    yield "not of this alphabet", f"\ud800.{parts[1]}.{parts[2]}", "malformed"


def _nested(depth: int) -> dict[str, Any]:
    actor: dict[str, Any] = {"sub": "a"}
    for _ in range(depth):
        actor = {"sub": "a", "act": actor}
    return actor


def _beside(sign: str) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return alphabet[alphabet.index(sign) ^ 1]


@pytest.mark.promise("identity.tokens-refused")
async def test_no_bad_token_is_accepted_and_each_refusal_has_a_reason_without_a_part_of_the_token() -> None:
    issuer, strict = (
        Issuer(),
        Issuer(required_claims={"env": frozenset({"prod"})}, required_scopes=frozenset({"toolhub"})),
    )
    tried = 0
    for what, token, problem in attacks(issuer):
        check = strict if problem in ("claim", "scope") else issuer
        refused = await refusal(check, token)
        assert refused.problem == problem, f"{what}: {refused.problem}: {refused.message}"
        words = [part for part in token.split(".") if len(part) > 8]
        assert not any(word in refused.message for word in (*words, "evil", "alice", "staging")), what
        tried += 1
    assert tried >= 80
    # Ten that the hub has to ask the issuer about, at most: made-up keys do not make it ask again and again.
    assert len(issuer.asked) <= 2 + 5


@pytest.mark.promise("identity.tokens")
async def test_claims_give_roles_groups_tenant_and_capabilities_and_never_more_than_listed() -> None:
    issuer = Issuer(
        roles={"group:admins": frozenset({Role.OPERATOR}), "*": frozenset({Role.AGENT})},
        capabilities={"scope:read": frozenset({"read:*"}), "scope:send": frozenset({"send:message"})},
        groups_claim="realm_access.roles",
        tenant_claim="org",
        principal_claim="email",
    )
    mail: dict[str, Any] = {"email": "a@example.com", "org": "acme"}
    admin = issuer.token(**mail, email_verified=True, scope="read", realm_access={"roles": ["admins", 7]})
    found = await identity(issuer, admin)
    assert (found.principal_id, found.tenant, found.groups) == (
        "corp:acme/a@example.com",
        "acme",
        frozenset({"admins"}),
    )
    assert found.roles == frozenset({Role.OPERATOR, Role.AGENT})
    assert found.permissions == frozenset({"read:*"})
    plain = await identity(issuer, issuer.token(**mail, email_verified=True, groups=["admins"]))
    assert (plain.roles, plain.permissions) == (frozenset({Role.AGENT}), frozenset())
    for changed in ({"email_verified": None}, {"email_verified": "true"}, {"org": "a/b"}, {"org": None}):
        assert (await refusal(issuer, issuer.token(**{**mail, "email_verified": True, **changed}))).problem in (
            "subject",
            "tenant",
        )


def test_limits_of_a_token_and_of_a_call_both_apply() -> None:
    assert narrow_permissions(ExecContext(), frozenset({"read:*"})).permissions == frozenset({"read:*"})
    cases: list[tuple[set[str], set[str], set[str]]] = [
        ({"read:fs", "write:fs"}, {"read:*"}, {"read:fs"}),
        ({"read:*"}, {"read:fs", "network"}, {"read:fs"}),
        ({"*"}, {"danger:destructive", "read:*"}, {"read:*"}),
        ({"network"}, {"read:*"}, set()),
        (set(), {"read:*"}, set()),
    ]
    for asked, most, both in cases:
        context = ExecContext(permissions=frozenset(asked))
        assert narrow_permissions(context, frozenset(most)).permissions == frozenset(both)


# Keys


@pytest.mark.promise("identity.keys")
async def test_a_new_key_is_found_at_once_and_a_withdrawn_one_ends_what_it_has_verified() -> None:
    issuer = Issuer()
    old = issuer.token()
    await identity(issuer, old)
    issuer.keys = [public_jwk(OTHER_RSA, "RS256", "new")]
    new = signed({"alg": "RS256", "kid": "new", "typ": "at+jwt"}, issuer.claims(), OTHER_RSA, "RS256")
    both = await asyncio.gather(*(identity(issuer, new) for _ in range(50)))
    assert {found.principal_id for found in both} == {"corp:alice"}
    assert issuer.asked.count(f"{ISSUER}/keys") == 2
    assert (await refusal(issuer, old)).problem == "key"


@pytest.mark.promise("identity.keys")
async def test_made_up_keys_make_the_hub_ask_at_a_bounded_rate_and_no_good_token_waits_for_them() -> None:
    issuer = Issuer()
    good = issuer.token()
    await identity(issuer, good)
    for number in range(500):
        assert (await refusal(issuer, issuer.token(header={"kid": f"k{number}"}))).problem == "key"
        issuer.tokens.verify(good)
    assert issuer.asked.count(f"{ISSUER}/keys") == 1 + 5
    issuer.clock.advance(11)
    await refusal(issuer, issuer.token(header={"kid": "k0"}))
    assert issuer.asked.count(f"{ISSUER}/keys") == 1 + 5, "k0 was looked for within a minute"
    await refusal(issuer, issuer.token(header={"kid": "k9999"}))
    assert issuer.asked.count(f"{ISSUER}/keys") == 1 + 6


@pytest.mark.promise("identity.keys")
async def test_while_the_issuer_is_away_its_last_keys_serve_for_the_grace_and_no_longer() -> None:
    issuer = Issuer(grace_s=3_600.0)
    await identity(issuer, issuer.token())
    issuer.is_up = False
    for _ in range(10):
        issuer.clock.advance(360)
        await identity(issuer, issuer.token())
    assert len(issuer.asked) < 2 + 12, "an issuer that is away is left alone between attempts"
    issuer.clock.advance(61)
    refused = await refusal(issuer, issuer.token())
    assert (refused.problem, refused.retry_after_s is not None) == ("unreachable", True)
    issuer.is_up = True
    issuer.clock.advance(61)
    await identity(issuer, issuer.token())


@pytest.mark.promise("identity.keys")
async def test_an_issuer_that_was_never_reached_is_refused_until_it_is_there_and_asked_once_by_many() -> None:
    issuer = Issuer()
    issuer.is_up = False
    refused = await asyncio.gather(*(refusal(issuer, issuer.token()) for _ in range(50)))
    assert {each.problem for each in refused} == {"unreachable"}
    assert len(issuer.asked) == 1
    issuer.is_up = True
    issuer.clock.advance(3)
    await identity(issuer, issuer.token())


async def test_keys_are_refreshed_beside_calls_that_use_them() -> None:
    issuer = Issuer()
    token = issuer.token(exp=issuer.clock.unix_ms() // 1_000 + 5_000)
    await identity(issuer, token)
    issuer.clock.advance(301)
    issuer.tokens.verify(token)
    await asyncio.sleep(0)
    await issuer.tokens.issuers[ISSUER].refresh()
    assert issuer.asked.count(f"{ISSUER}/keys") == 2
    issuer.clock.advance(5_000)
    assert (await refusal(issuer, token)).problem == "expired"


@pytest.mark.promise("identity.keys")
async def test_documents_that_could_lend_the_keys_of_another_are_refused() -> None:
    for discovery in (
        {"issuer": "https://other.example", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": f"{ISSUER}/", "jwks_uri": f"{ISSUER}/keys"},
        {"issuer": ISSUER, "jwks_uri": "http://id.example.com/keys"},
        {"issuer": ISSUER, "jwks_uri": "file:///etc/passwd"},
        {"issuer": ISSUER},
    ):
        issuer = Issuer()
        issuer.discovery = discovery
        assert (await refusal(issuer, issuer.token())).problem == "unreachable"
        assert issuer.tokens.issuers[ISSUER].problem


def test_weak_secret_and_foreign_keys_are_passed_over() -> None:
    rsa, allowed = PRIVATE["RS256"], frozenset({"RS256", "ES256", "EdDSA"})
    good = public_jwk(rsa, "RS256", "good")
    bad: list[Any] = [
        public_jwk(WEAK_RSA, "RS256", "weak"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {**good, "d": "AQAB"},
        {**good, "use": "enc"},
        {**good, "key_ops": ["encrypt"]},
        {**good, "alg": "RS512"},
        {**good, "n": "AA"},
        {**good, "kid": 7},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "no point"},
        {"kty": "OKP", "crv": "X25519", "x": "AA"},
        "no object",
    ]
    keys = read_keys(json.dumps({"keys": [*bad, good]}).encode(), allowed)
    assert [key.key_id for key in keys.keys] == ["good"]
    for body in (
        b"[]",
        b"{}",
        b'{"keys": {}}',
        json.dumps({"keys": bad}).encode(),
        b'{"keys": [' + b"{}," * 80 + b"{}]}",
    ):
        with pytest.raises(FetchFailed):
            read_keys(body, allowed)
    for url in ("http://id.example.com", "ftp://id.example.com", "https://user@id.example.com", "id.example.com"):
        with pytest.raises(FetchFailed):
            check_url("issuer", url)
    check_url("issuer", "http://127.0.0.1:9000")


async def test_remembered_tokens_are_bounded_in_number_and_by_audience() -> None:
    issuer = Issuer()
    token = issuer.token()
    with pytest.raises(KeysNeeded):
        issuer.tokens.verify(token)
    await identity(issuer, token)
    with pytest.raises(TokenRefused):
        issuer.tokens.verify(token, frozenset({"https://hub.example.com/mcp"}))
    assert structs.replace(issuer.terms, name="x").name == "x"
