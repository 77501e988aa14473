"""Invalid documents and how they are reported; valid documents and what they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolhub_service.policy.advice.unmatched_names import Known, find_unmatched_names
from toolhub_service.policy.decide import PolicySnapshot
from toolhub_service.policy.document import PolicyDocument, canonical_bytes, document_schema
from toolhub_service.policy.parsing import MAX_TEXT_CHARS, InvalidPolicy, parse_policy

REFUSED = {
    "a key written twice": ("grants: []\nrules: []\ngrants: []\n", 3, "`grants` appears twice (lines 1 and 3)"),
    "an inner key written twice": ("rules:\n- id: a\n  effect: DENY\n  effect: ALLOW\n", 4, "(lines 3 and 4)"),
    "a key written twice in a line": ("rules:\n- {id: a, id: b}\n", 2, "`id` appears twice (line 2)"),
    "a misspelt key": ("grants:\n- principals: [a]\n  capabilites: [x]\n", 3, "did you mean `capabilities`"),
    "a misspelt section": ("graints: []\n", 1, "did you mean `grants`"),
    "a misspelt key of the sandbox": ("sandbox:\n  max_reed_bytes: 1\n", 2, "did you mean `max_read_bytes`"),
    "a misspelt key of a flag": ("commands:\n- name: a\n  path: /a\n  flags: [{flg: -n}]\n", 4, "did you mean `flag`"),
    "a misspelt approval term": ("rules:\n- {id: a, effect: DENY, approval: {expire_s: 1}}\n", 2, "expires_s"),
    "an unknown effect": ("rules:\n- id: a\n  effect: DENIED\n", 3, "DENIED"),
    "a lower-case effect": ("rules:\n- id: a\n  effect: deny\n", 3, "did you mean `DENY`"),
    "a misspelt effect": ("rules:\n- id: a\n  effect: DENEY\n", 3, "did you mean `DENY`"),
    "another misspelt effect": ("rules:\n- id: a\n  effect: REQUIRE_APROVAL\n", 3, "mean `REQUIRE_APPROVAL`"),
    "an effect like no other": ("rules:\n- id: a\n  effect: xyz\n", 3, "allowed: ALLOW, DENY"),
    "a misspelt role": ("roles:\n- principals: [a]\n  roles: [aprover]\n", 3, "did you mean `approver`"),
    "a misspelt scheme": ("egress:\n- hosts: [x.org]\n  schemes: [htps]\n", 3, "did you mean `https`"),
    "a misspelt per": ("limits:\n- {id: a, quota: 1, per: principle}\n", 2, "did you mean `principal`"),
    "a path prefix that climbs": ("egress:\n- hosts: [x.org]\n  paths: ['/a/..%2fb']\n", 3, "not a path prefix"),
    "a path prefix without a slash": ("egress:\n- hosts: [x.org]\n  paths: [v1]\n", 3, "regex"),
    "a path prefix with a query": ("egress:\n- hosts: [x.org]\n  paths: ['/v1?a']\n", 3, "regex"),
    "a text for a list": ("grants:\n- principals: everybody\n", 2, "Expected `array`"),
    "no principals": ("grants:\n- principals: []\n", 2, "length"),
    "an empty glob": ("grants:\n- principals: ['']\n", 2, "length"),
    "a bool for a number": ("sandbox:\n  max_read_bytes: yes\n", 2, "Expected `int`"),
    "a negative size": ("sandbox: {max_read_bytes: -1}\n", 1, ">= 0"),
    "no number": ("limits:\n- id: a\n  rate_per_s: .nan\n", 3, "> 0"),
    "infinity": ("limits:\n- id: a\n  rate_per_s: .inf\n", 3, "<= 1000000"),
    "a limit that sets no limit": ("limits:\n- id: a\n", 2, "sets no limit"),
    "a rule id twice": ("rules:\n- {id: a, effect: DENY}\n- {id: a, effect: ALLOW}\n", 3, "used twice"),
    "a limit id twice": ("limits:\n- {id: a, quota: 1}\n- {id: a, quota: 2}\n", 3, "used twice"),
    "an id that looks built in": ("rules:\n- {id: 'guard:path', effect: ALLOW}\n", 2, "regex"),
    "a star over destruction": (
        "grants:\n- principals: [a]\n  capabilities: ['danger:*']\n",
        3,
        "a wildcard never covers",
    ),
    "a URL for a host": ("egress:\n- hosts: ['https://x.org']\n", 2, "is not a host"),
    "a host with a path": ("egress:\n- hosts: [x.org/y]\n", 2, "is not a host"),
    "a star inside a host": ("egress:\n- hosts: ['api.*.org']\n", 2, "is not a host"),
    "an address in disguise": ("egress:\n- hosts: ['0x7f.1']\n", 2, "is not a host"),
    "a scheme of files": ("egress:\n- hosts: [x.org]\n  schemes: [file]\n", 3, "file"),
    "a port beyond": ("egress:\n- hosts: [x.org]\n  ports: [70000]\n", 3, "65535"),
    "a method in lower case": ("egress:\n- hosts: [x.org]\n  methods: [get]\n", 3, "regex"),
    "a network with host bits": ("egress:\n- hosts: [x.org]\n  cidrs: [10.0.0.1/8]\n", 3, "is not a network"),
    "a blocked network with host bits": ("blocked_cidrs:\n- 203.0.113.7/24\n", 2, "is not a network"),
    "a denied command that is no pattern": ("denied_commands:\n- {id: x, pattern: '('}\n", 2, "is not an RE2 pattern"),
    "a relative binary": ("commands:\n- {name: git, path: git}\n", 2, "absolute"),
    "a command with a path for a name": ("commands:\n- {name: /bin/sh, path: /bin/sh}\n", 2, "regex"),
    "a command without a name": ("commands:\n- {path: /bin/sh}\n", 2, "bare name"),
    "a preset with more": ("commands:\n- {preset: safe, name: sh, path: /bin/sh}\n", 2, "cannot be combined"),
    "an unknown preset": ("commands:\n- {preset: dangerous}\n", 2, "dangerous"),
    "a look-around": ("commands:\n- {name: a, path: /a, positionals: '(?=x)'}\n", 2, "RE2"),
    "a flag without a dash": ("commands:\n- {name: a, path: /a, flags: [{flag: n}]}\n", 2, "regex"),
    "an alias": ("grants: &g []\nrules: *g\n", 2, "aliases"),
    "a bomb of aliases": ("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", 2, "aliases"),
    "an object": ("grants: !!python/object/apply:os.system [id]\n", 1, ""),
    "a set": ("grants: !!set {a}\n", 1, "unsupported YAML type"),
    "a date": ("extends: 2026-01-01\n", 1, "quotes"),
    "a date that is none": ("extends: 2026-99-99\n", None, "quotes"),
    "a merge key": ("<<: {grants: []}\n", 1, ""),
    "a list for a key": ("? [a]\n: 1\n", 1, "plain names"),
    "a number for a key": ("1: 2\n", 1, "plain names"),
    "two documents": ("grants: []\n---\nrules: []\n", 2, "another document"),
    "a list at the top": ("- grants\n", 1, "Expected `object`"),
    "a text at the top": ("allow everything\n", 1, "Expected `object`"),
    "a broken line": ("grants: [\n", 2, "not YAML"),
    "a tab": ("grants:\n\t- a\n", 2, "not YAML"),
    "a NUL": ("grants: []\x00", None, "not YAML"),
    "a bottomless nest": ("grants: " + "[" * 5_000, None, "too deeply"),
    "a file without end": ("#" * (MAX_TEXT_CHARS + 1), None, "characters"),
    "an extension of nothing known": ("extends: prod\n", 1, "prod"),
    "a null section": ("grants: null\n", 1, "null"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_document_is_refused_with_its_line(name: str) -> None:
    text, line, expected = REFUSED[name]
    with pytest.raises(InvalidPolicy) as caught:
        PolicySnapshot.load(text)
    assert expected in caught.value.problem
    assert caught.value.line == line
    assert line is None or f"line {line}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grants: [\n", "line 2: not YAML: a value is missing before the end of the file (column 1)"),
        (
            "grants: [a\nrules: []\n",
            "line 2: not YAML: `,` or `]` is missing before `:`; what it belongs to begins in line 1 (column 6)",
        ),
        (
            "grants:\n- a\n  - b: c\nb\n",
            "line 3: not YAML: `:` is not allowed here: check the indentation, or quote the value (column 6)",
        ),
        ("grants:\n  - a\n - b\n", "line 3: not YAML: a list is not expected here: check the indentation (column 2)"),
        ("grants:\n\t- a\n", "line 2: not YAML: a tab is not allowed here: indent with spaces (column 1)"),
        ("grants: 'a\n", "line 2: not YAML: a quote is not closed before the end of the file (column 1)"),
        ("grants: @a\n", "line 1: not YAML: a value cannot begin with `@`: put it in quotes (column 9)"),
        ("a: b\nc\n", "line 3: not YAML: a key has no `:` after it (column 1)"),
    ],
)
def test_text_that_is_no_yaml_is_reported_with_its_place_and_without_the_parsers_tokens(
    text: str, expected: str
) -> None:
    """At 178792e it was reported as `expected the node content, but found '<stream end>'`."""
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy(text)
    assert str(caught.value) == expected


def test_a_violation_names_the_path_of_the_problem() -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy("rules:\n- id: a\n  effect: DENY\n- id: b\n  effekt: DENY\n")
    assert caught.value.path == "rules[1].effekt"


def test_data_already_loaded_is_read_alike() -> None:
    text = "grants:\n- {principals: [a], capabilities: ['read:*']}\nsandbox: {may_overwrite: false}\n"
    data: dict[str, Any] = {
        "grants": [{"principals": ["a"], "capabilities": ["read:*"]}],
        "sandbox": {"may_overwrite": False},
    }
    assert parse_policy(text)[0] == parse_policy(data)[0]
    with pytest.raises(InvalidPolicy) as caught:
        parse_policy({"grants": [{"principals": [1]}]})
    assert caught.value.line is None
    assert caught.value.path == "grants[0].principals[0]"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}\n", "---\n"])
def test_an_empty_file_is_the_starter_policy(text: str) -> None:
    assert PolicySnapshot.load(text).revision == PolicySnapshot().revision


def test_json_is_yaml() -> None:
    text = json.dumps({"grants": [{"principals": ["é \u2028 \t"], "capabilities": ["gpu"]}]})
    assert parse_policy(text)[0].grants[0].principals == ("é \u2028 \t",)


def test_every_key_is_documented_in_the_schema() -> None:
    schema = document_schema()
    undocumented = [
        f"{name}.{key}"
        for name, definition in schema["$defs"].items()
        for key, value in definition["properties"].items()
        if "description" not in json.dumps(value)
    ]
    assert undocumented == []
    assert schema["$defs"]["PolicyDocument"]["additionalProperties"] is False


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="grants:rule[]{}-\n '\"&*!|>#?%@`,01\t", max_size=60))
def test_any_text_is_a_policy_or_an_invalid_policy(text: str) -> None:
    try:
        document, _ = parse_policy(text)
    except InvalidPolicy:
        return
    assert isinstance(document, PolicyDocument)
    assert json.loads(canonical_bytes(document))["extends"] in ("starter", "none")


KNOWN = Known(
    tools=frozenset({"core/fs.readText", "core/fs.deletePath", "github/create_issue"}),
    capabilities=frozenset({"read:fs", "danger:destructive", "mcp:github"}),
    principals=frozenset({"local", "ann", "research-1"}),
    unread=frozenset({"papers"}),
    issuers=frozenset({"corp"}),
)


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("rules: [{id: a, effect: DENY, tools: [core/fs.deletPath]}]", "rules[0].tools[0]", "`core/fs.deletePath`?"),
        ("rules: [{id: a, effect: DENY, tools: ['cor/*']}]", "rules[0].tools[0]", "matches no known tool"),
        ("limits: [{id: a, quota: 1, tools: ['*', 'githb/*']}]", "limits[0].tools[1]", "matches no known tool"),
        ("egress: [{hosts: [x.org], tools: [core/http.fetch]}]", "egress[0].tools[0]", "matches no known tool"),
        ("grants: [{principals: [ann], capabilities: [reed:fs]}]", "grants[0].capabilities[0]", "`read:fs`?"),
        (
            "grants: [{principals: [ann], capabilities: ['raed:*']}]",
            "grants[0].capabilities[0]",
            "matches no known capability",
        ),
        ("rules: [{id: a, effect: DENY, capabilities: [mcp:githup]}]", "rules[0].capabilities[0]", "`mcp:github`?"),
        ("rules: [{id: a, effect: DENY, principals: [anne]}]", "rules[0].principals[0]", "`ann`?"),
        (
            "roles: [{principals: ['reserch-*'], roles: [agent]}]",
            "roles[0].principals[0]",
            "matches no known principal",
        ),
        ("roles: [{principals: ['group:crop/admins'], roles: [agent]}]", "roles[0].principals[0]", "none of that name"),
        (
            "grants: [{principals: ['grup:corp/admins']}]",
            "grants[0].principals[0]",
            "did you mean `group:corp/admins`?",
        ),
        ("grants: [{principals: ['spifee://a/b']}]", "grants[0].principals[0]", "did you mean `spiffe://a/b`?"),
        ("tenants: [{name: acme, principals: [anne]}]", "tenants[0].principals[0]", "`ann`?"),
        ("impersonate: ['Issuers:corp']", "impersonate[0]", "did you mean `issuer:corp`?"),
        ("impersonate: ['actor:bob']", "impersonate[0]", "matches no known principal"),
        ("impersonate: [bob]", "impersonate[0]", "matches no known principal"),
        (
            "rules: [{id: a, effect: REQUIRE_APPROVAL, approval: {approvers: [bob]}}]",
            "rules[0].approval.approvers[0]",
            "matches no known principal",
        ),
    ],
)
def test_pattern_that_matches_nothing_known_is_reported(text: str, place: str, expected: str) -> None:
    ((path, problem),) = find_unmatched_names(parse_policy(text)[0], KNOWN)
    assert path == place
    assert expected in problem


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "rules: [{id: a, effect: DENY, tools: ['*', 'core/*', '*.readText', github/create_issue]}]",
        "rules: [{id: a, effect: DENY, tools: [papers/search, 'papers/*', 'pap*']}]",
        "grants: [{principals: ['group:corp/x', 'issuer:corp', 'corp:ann', 'actor:corp:*', 'spiffe://a/b/**']}]",
        "tenants: [{name: '{tenant}', principals: ['new:{tenant}/*']}]",
        "grants: [{principals: ['*', ann, 'research-*'], capabilities: ['read:*', danger:destructive]}]",
    ],
)
def test_pattern_that_matches_or_may_match_is_not_reported(text: str) -> None:
    assert not list(find_unmatched_names(parse_policy(text)[0], KNOWN))


def test_names_are_not_checked_where_none_are_known() -> None:
    document, _ = parse_policy("grants: [{principals: [a], capabilities: [b]}]\nimpersonate: [c]")
    assert not list(find_unmatched_names(document, Known(frozenset(), frozenset(), frozenset())))


def test_file_of_just_as_many_characters_as_are_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "grants: []"
    monkeypatch.setattr("toolhub_service.policy.parsing.MAX_TEXT_CHARS", len(text))
    parse_policy(text)
    with pytest.raises(InvalidPolicy, match="characters"):
        parse_policy(f"{text}\n")
