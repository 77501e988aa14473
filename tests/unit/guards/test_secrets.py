"""The redactor hides what it must, leaves what it may, and never raises."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub_service.domain.json import JsonObject
from toolhub_service.guards.secret_mask import Mask
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.guards.secrets import MARK, Redactor

CANARY = 'c4nary/+ "säcret" value'
REDACTOR = Redactor([CANARY, "plain-canary-0123"])


SECRET_NAMES = """
password passwd Passwort_password secret token api_key apiKey X-API-Key authorization Authorization cookie Set-Cookie
private_key privateKey client_secret clientSecret credentials AWS_SECRET_ACCESS_KEY db.password password2 accessToken
HUB_TOKEN_VALUE connectionString db_pass vaultToken clientsecret secretAccessKey refresh_tokens X-Auth-Token
client_secret_v2 conn_str connStr mnemonic wallet_mnemonic seedPhrase kubeconfig KUBECONFIG kubeConfig api_key_old
db_password_prod tokenV3
""".split()
PLAIN_NAMES = """
path author key public_key token_type secret_name keyword monkey compass primaryKey api_version token_count ___
credential_id password_policy cookie_policy sequence_key config kube_context connection_timeout seed phrase strength
""".split()


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_announces_a_secret_is_known_in_any_spelling(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_that_only_sounds_like_a_secret_is_left_alone(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=hunter2", "password=***"),
        ('{"password": "hun\\"ter2", "user": "bob"}', '{"password": "***", "user": "bob"}'),
        ('{"body": "{\\"token\\": \\"abc123\\"}"}', '{"body": "{\\"token\\": \\"***\\"}"}'),
        ('{"api_key":"cut off here', '{"api_key":"***'),
        ("{'apiKey': 'abc', 'limit': 3}", "{'apiKey': '***', 'limit': 3}"),
        ("Authorization: Bearer abc.def-123\nHost: example.com", "Authorization: ***\nHost: example.com"),
        ("('authorization', 'Basic YWxhZGRpbjpvcGVu')", "('authorization', '***')"),
        ("[(b'cookie', b'sid=1; uid=2')]", "[(b'cookie', b'***')]"),
        ("Cookie: a=1; b=2", "Cookie: ***"),
        ("https://bob:s3cr3t@example.com/x?y=1", "https://***@example.com/x?y=1"),
        ("redis://:pa/ss?w@cache:6379/0", "redis://***@cache:6379/0"),
        ("https://ghp@host", "https://***@host"),
        ("ssh://git@example.com/x.git", "ssh://git@example.com/x.git"),
        ("https://example.com:8443/a@b", "https://example.com:8443/a@b"),
        ("https://x.blob.core/y?sv=1&sig=AbC%2B1&se=2", "https://x.blob.core/y?sv=1&sig=***&se=2"),
        ("curl -u bob:hunter2 https://example.com", "curl -u *** https://example.com"),
        ("tool --password hunter2 --limit 3", "tool --password *** --limit 3"),
        ("got bearer dGhpcyBpcyBh1 back", "got bearer *** back"),
        ("Server=db;Password=p@ss,word;Database=x", "Server=db;Password=***;Database=x"),
        ("<password>hunter2</password>", "<password>***</password>"),
        ("key eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "key ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- tail", "*** tail"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIE cut", "***"),
        ("host=a\\npwd=hunter2", "host=a\\npwd=***"),
        ("\\tapi_key=hunter2", "\\tapi_key=***"),
        ("npwd=hunter2", "npwd=hunter2"),
        ("take ghp_0123456789abcdefghijABCDEFGHIJ012345 now", "take *** now"),
        ("AKIAIOSFODNN7EXAMPLE and 1", "*** and 1"),
        ("a token bucket holds max_tokens: 100", "a token bucket holds max_tokens: 100"),
        ('{"credentials":{"user":"bob","k":{"pw":"x"}},"n":1}', '{"credentials":***,"n":1}'),
        ("{'tokens': ['abc', 'def'], 'n': 1}", "{'tokens': ***, 'n': 1}"),
        ('"cookies":[{"sid":"abc"', '"cookies":***'),
        ("token: null, secret: false", "token: null, secret: false"),
        ("basic knowledge, bearer authentication", "basic knowledge, bearer authentication"),
        ("password=\ud800\udfffx\ud801", "password=***"),
    ],
)
def test_secrets_in_text_are_hidden_and_the_rest_is_kept(text: str, shown: str) -> None:
    assert REDACTOR.text(text) == shown


def of(alphabet: str, length: int) -> str:
    """As many characters as a token has, which no issuer ever issued."""
    return (alphabet * length)[:length]


HEX, MIXED, UPPER = "0a1b2c3d4e5f6789", "aB3dE6gH9jKl2", "AB3DE6GH9JKL2"
TOKENS = {
    "Discord bot": f"M{of(MIXED, 24)}.{of(MIXED, 6)}.{of(MIXED, 38)}",
    "Brevo": f"xkeysib-{of(HEX, 64)}-{of(MIXED, 16)}",
    "PlanetScale": f"pscale_pw_{of(MIXED, 43)}",
    "Shippo": f"shippo_live_{of(HEX, 40)}",
    "Airtable": f"pat{of(MIXED, 14)}.{of(HEX, 64)}",
    "Dynatrace": f"dt0c01.{of(UPPER, 24)}.{of(UPPER, 64)}",
    "Alibaba Cloud": f"LTAI{of(MIXED, 20)}",
    "Square": f"EAAA{of(MIXED, 60)}",
    "Square application": f"sq0csp-{of(MIXED, 43)}",
    "Twilio": f"SK{of(HEX, 32)}",
    "Notion": f"ntn_{of(MIXED, 46)}",
    "Google refresh token": f"1//0{of(MIXED, 60)}",
    "Heroku": f"HRKU-AA{of(MIXED, 58)}",
    "Firebase": f"AAAA{of(MIXED, 7)}:APA91b{of(MIXED, 134)}",
    "Supabase": f"sbp_{of(HEX, 40)}",
    "Supabase secret": f"sb_secret_{of(MIXED, 31)}",
    "Vercel": f"vcp_{of(MIXED, 56)}",
    "Okta": f"00a{of(MIXED, 39)}",
    "JWT in base64": base64.b64encode(b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N").decode(),
}


@pytest.mark.parametrize("issuer", TOKENS)
def test_a_token_of_this_issuer_is_hidden_where_no_name_announces_it(issuer: str) -> None:
    """Each but that of Square was shown at befa727."""
    assert REDACTOR.text(f"answered {TOKENS[issuer]} at last") == "answered *** at last"
    assert REDACTOR.value({"note": [TOKENS[issuer]]}) == {"note": ["***"]}


@pytest.mark.parametrize(
    "text",
    [
        f"commit {of(HEX, 40)}",
        f"sha256 {of(HEX, 64)}",
        f"id 00{of(HEX, 30)}",
        "SKU 0123456789 and SKETCH",
        "patience. pat.me 1//2 EAAA LTAI vcp_ AAAA",
        "01890a5d-ac96-774b-bcce-b302099a8057",
        "MainActivityConfigurationHelper.on.create",
    ],
)
def test_a_text_that_only_begins_like_a_token_is_left_alone(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_a_number_under_a_secret_name_in_text_is_hidden() -> None:
    assert REDACTOR.text("password=12345678") == "password=***"
    assert REDACTOR.text("pass_tokens=12345678") == "pass_tokens=12345678", "a count of tokens"
    assert REDACTOR.text("login --password 12345678 now") == "login --password *** now"


@pytest.mark.parametrize("secret", ["bobs-dog", "bbbb", "b"])
def test_value_that_begins_like_quoted_bytes_is_hidden_from_its_first_letter(secret: str) -> None:
    assert REDACTOR.text(f"password={secret}") == "password=***"
    assert REDACTOR.text(f"password=b'{secret}'") == "password=b'***'"
    assert REDACTOR.text(f'{{"password": "{secret}"}}') == '{"password": "***"}'
    assert REDACTOR.text(rf"{{\"password\": \"{secret}\"}}") == r"{\"password\": \"***\"}"


def test_known_values_are_hidden_in_every_spelling() -> None:
    raw = CANARY.encode()
    escaped = orjson.dumps(CANARY).decode()[1:-1]
    lower = re.sub("%..", lambda match: match.group().lower(), quote(CANARY, safe=""))
    written = (escaped, json.dumps(CANARY)[1:-1], json.dumps(json.dumps(CANARY))[3:-3], repr(CANARY)[1:-1])
    quoted = (quote(CANARY, safe=""), quote_plus(CANARY), lower, html.escape(CANARY))
    for spelling in (CANARY, raw.hex(), *written, *quoted):
        assert REDACTOR.text(f"before {spelling} after") == f"before {MARK} after"
    for before in ("", "u:", "user"):
        encoded = base64.b64encode(before.encode() + raw + b"@tail").decode()
        assert base64.b64encode(raw[3:-3]).decode()[4:-4] not in REDACTOR.text(encoded)


def test_values_too_short_to_be_secrets_do_not_blank_the_text() -> None:
    assert Redactor(["", "a", "  ", "abc"]).text("a banana, abc") == "a banana, abc"


def test_json_is_hidden_by_name_at_any_depth() -> None:
    value = {
        "url": "https://example.com",
        "headers": {"Authorization": "Bearer x", "Accept": "text/plain"},
        "items": [
            {"clientSecret": {"deep": ["x"]}, "n": 1},
            ["cookie", "sid=1"],
            {"name": "X-Api-Key", "value": "abc"},
        ],
        "max_tokens": 100,
        "token": None,
        "pin-canary": "is plain-canary-0123!",
    }
    assert REDACTOR.value(value) == {
        "url": "https://example.com",
        "headers": {"Authorization": MARK, "Accept": "text/plain"},
        "items": [{"clientSecret": MARK, "n": 1}, ["cookie", MARK], {"name": "X-Api-Key", "value": MARK}],
        "max_tokens": 100,
        "token": None,
        "pin-canary": f"is {MARK}!",
    }


def test_a_pair_counts_as_a_name_with_its_value_of_any_type() -> None:
    pairs = [["password", 1234], ["refresh_tokens", 100], ["password", None], [1234, "password=hunter2"]]
    assert REDACTOR.value(pairs) == [
        ["password", MARK],
        ["refresh_tokens", 100],
        ["password", None],
        [1234, "password=***"],
    ]


def test_a_secret_used_as_a_name_is_hidden() -> None:
    assert REDACTOR.value({"plain-canary-0123": 1}) == {MARK: 1}


def test_json_without_any_sign_of_a_secret_is_handed_back_as_it_is() -> None:
    value = {"path": "notes/today.md", "text": "the quick brown fox", "limit": 20}
    assert REDACTOR.value(value) is value
    assert orjson.loads(REDACTOR.json_text(value)) == value


def test_values_that_are_not_json_are_hidden_too() -> None:
    class Headers:
        def __str__(self) -> str:
            return "password=hunter2"

    deep: Any = "password=hunter2"
    for _ in range(5_000):
        deep = [deep]
    shown = REDACTOR.value({"a": Headers(), "b": b"token=abc", "c": 2**80, "d": deep, 3: "x"})
    assert shown["a"] == "password=***"
    assert shown["b"] == "token=***"
    assert shown["c"] == 2**80
    assert "hunter2" not in repr(shown["d"])
    assert "hunter2" not in REDACTOR.json_text({"a": Headers()})


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [(lambda inner: [inner], lambda outer: outer[0]), (lambda inner: {"a": inner}, lambda outer: outer["a"])],
    ids=["arrays", "objects"],
)
def test_two_hundred_levels_are_searched_and_what_lies_deeper_is_hidden_whole(
    wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]
) -> None:
    def nested(levels: int) -> Any:
        value: Any = {"note": "kept", "password": "hunter2"}
        for _ in range(levels):
            value = wrap(value)
        return value

    def innermost(value: Any, levels: int) -> Any:
        for _ in range(levels):
            value = unwrap(value)
        return value

    assert innermost(REDACTOR.value(nested(200)), 200) == {"note": "kept", "password": MARK}
    assert innermost(REDACTOR.value(nested(201)), 201) == MARK
    assert innermost(REDACTOR.value(nested(20_000)), 201) == MARK
    assert "kept" in REDACTOR.json_text([{1, 2}, nested(199)]), "a set is not JSON"
    assert "kept" not in REDACTOR.json_text([{1, 2}, nested(200)])


_WORDS = "password token apiKey Authorization cookie sig= = : \\ { } [ ] , ; & ? @ / :// > < *** abc x1y2z3w4v5 ä null"
_FRAGMENTS = st.sampled_from(
    [
        *_WORDS.split(),
        " ",
        '"',
        "'",
        "\n",
        "\ud800",
        "Bearer ",
        "Basic ",
        "-u ",
        "--token ",
        "-----BEGIN PRIVATE KEY-----",
        " ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "plain-canary-0123",
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.lists(_FRAGMENTS, max_size=14).map("".join))
def test_redaction_never_raises_is_idempotent_and_leaves_no_known_value(text: str) -> None:
    once = REDACTOR.text(text)
    assert REDACTOR.text(once) == once
    assert "plain-canary-0123" not in once
    assert "ghp_0123456789" not in once


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | _FRAGMENTS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_any_json_value_is_redacted_to_json_and_only_once(value: Any) -> None:
    once = REDACTOR.value(value)
    assert REDACTOR.value(once) == once
    assert isinstance(REDACTOR.json_text(value), str)


def test_a_secret_learnt_later_is_hidden_like_one_known_from_the_start() -> None:
    redactor = Redactor(["first-secret-value"])
    assert redactor.text("say open-sesame-42") == "say open-sesame-42"
    redactor.learn(["open-sesame-42"])
    assert redactor.text("say open-sesame-42 and first-secret-value") == "say *** and ***"
    assert redactor.suspects(b"open-sesame-42")


# Masks: known values out of a definition, and nothing else.

SECRET = "s3cret-of-this-source"


def test_every_spelling_of_a_value_is_hidden_in_names_and_values_of_all_levels() -> None:
    encoded = base64.b64encode(f"me:{SECRET}".encode()).decode()
    value: JsonObject = {"a": [{"b": f"x {SECRET} y", SECRET: encoded}], "n": [1, None, True, 2.5]}

    shown = Mask([SECRET]).object(value)

    assert shown["n"] == [1, None, True, 2.5]
    assert json.dumps(shown["a"]).startswith('[{"b": "x *** y"')
    assert SECRET not in json.dumps(shown)
    assert encoded not in json.dumps(shown)


def test_a_text_that_only_resembles_a_secret_is_left_alone() -> None:
    schema = {"properties": {"password": {"type": "string", "default": "Bearer abcdef0123456789"}}}

    assert Mask([SECRET]).object(schema) == schema
    assert not Mask([SECRET]).finds(json.dumps(schema).encode())


def test_an_empty_mask_finds_nothing() -> None:
    assert not Mask().finds(b"anything")
    assert Mask().text("anything") == "anything"


@pytest.mark.parametrize(
    "text",
    [
        '{"path":"../secret","startLine":null}',
        '{"rule_id":"deny-secret","reason":"Nobody reads it."}',
        '{"tool": "vault/read.token", "args": {"n": 1}}',
        '["docs/api-key", "docs/other", "docs/third"]',
        '{"a":"my token","next" : 1}',
    ],
)
def test_names_beside_a_text_that_ends_like_a_secrets_name_stay(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize("text", ['["authorization","Abc123xyz"]', "('password', 'hunter22')", '["api_key","v4lue"]'])
def test_a_pair_of_a_name_and_its_secret_is_still_hidden(text: str) -> None:
    assert "***" in Redactor().text(text)


SPELT = "kän7/secret+value"


@pytest.mark.parametrize(
    "spelling",
    [
        SPELT.encode().hex().upper(),
        SPELT.encode().hex(":"),
        "".join(f"%{byte:02x}" for byte in SPELT.encode()),
        "".join(f"%{byte:02X}" for byte in SPELT.encode()),
        "".join(f"\\u{ord(char):04x}" for char in SPELT),
        "".join(f"\\u{ord(char):04X}" for char in SPELT),
        "".join(f"\\x{byte:02X}" for byte in SPELT.encode()),
    ],
)
def test_a_known_secret_is_hidden_however_it_is_spelled_out(spelling: str) -> None:
    assert Mask([SPELT]).text(f"a{spelling}b") == "a***b"
    assert Redactor([SPELT]).text(f"a {spelling} b") == "a *** b"
