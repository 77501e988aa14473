"""sources.yaml: valid entries are read, and invalid ones are reported by their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from toolhub_service.adapters.langchain.kind import LangChainSource
from toolhub_service.adapters.mcp.kind import McpSource
from toolhub_service.app.config_files.sources_editing import NotEditable, with_sources, without_source
from toolhub_service.app.config_files.sources_file import SourcesFile, parse_sources, read_sources
from toolhub_service.sections.source_config import SecretRef, ValueMissing, resolve_value
from toolhub_service.settings.loading import SettingsInvalid

GOOD = """
sources:
  files:
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem", /srv/docs]
    env: {LEVEL: info, TOKEN: {env: FILES_TOKEN}}
  github:
    kind: mcp
    url: https://mcp.example.com/mcp
    headers: {Authorization: {file: /run/secrets/github, prefix: "Bearer "}}
    trust: approval
    tools: {"get_*": {read_only: true}}
  desk:
    kind: langchain
    load: ["langchain_community.agent_toolkits:FileManagementToolkit"]
"""


def test_sources_of_every_kind_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text(GOOD)
    files, github, desk = read_sources(path).sources.values()
    assert isinstance(files, McpSource)
    assert (files.command, files.args[0], files.env["TOKEN"]) == ("npx", "-y", SecretRef(env="FILES_TOKEN"))
    assert isinstance(github, McpSource)
    assert (github.trust, github.tools["get_*"].read_only) == ("approval", True)
    assert isinstance(desk, LangChainSource)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "sources:\n", "sources: {}\n"])
def test_file_without_sources_has_none(text: str) -> None:
    assert parse_sources(text, "x").sources == {}


LOGIN = "sources: {far: {url: 'https://a.example', login: {%s}}}"
CLIENT = "sources: {far: {url: 'https://a.example/mcp', oauth: {client_id: hub, %s}}}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a", "top level must be a mapping"),
        ("source: {}", "did you mean `sources`"),
        ("sources: [a]", "must be a mapping from name"),
        ("sources: {files: npx}", "sources.files: must be a mapping"),
        (
            "sources: {desk: {kind: langchain, load: [acme.tools:search], trust: approval}}",
            "sources.desk: unknown key `trust`; only sources of kind mcp",
        ),
        (
            "sources: {files: {command: npx, tools: {a: {trust: approval}}}}",
            "sources.files.tools.…: unknown key `trust`; it is a key of the source itself, not of this section",
        ),
        ("sources: {files: {command: npx, read_only: true}}", "sources.files: unknown key `read_only`"),
        ("sources: {files: {comand: npx}}", "sources.files: unknown key `comand`; did you mean `command`?"),
        ("sources: {files: {command: npx, args: -y}}", "sources.files.args: Expected `array`"),
        ("sources: {files: {command: npx, trust: allways}}", "sources.files.trust: Invalid enum value 'allways'"),
        (
            "sources: {files: {command: npx, tools: {'*': {readonly: true}}}}",
            "sources.files.tools.…: unknown key `readonly`; did you mean `read_only`?",
        ),
        ("sources: {files: {kind: mpc, command: x}}", "sources.files.kind: there is no kind 'mpc'; did you mean mcp?"),
        ("sources: {files: {kind: 7, command: x}}", "sources.files.kind: there is no kind '7'"),
        ("sources: {files: {}}", "exactly one of `command` and `url`"),
        ("sources: {files: {command: npx, url: 'https://a.example'}}", "exactly one of `command` and `url`"),
        ("sources: {files: {url: 'ftp://a.example'}}", "sources.files.url: must begin with http"),
        ("sources: {files: {url: 'https://a.example', args: [x]}}", "sources.files.args: not allowed with `url`"),
        ("sources: {files: {command: x, headers: {A: b}}}", "sources.files.headers: not allowed with `command`"),
        ("sources: {files: {command: x, env: {A: {prefix: b}}}}", "sources.files.env.A: needs exactly one of"),
        ("sources: {files: {command: x, env: {A: {env: b, file: c}}}}", "sources.files.env.A: needs exactly one of"),
        (CLIENT % "", "sources.far.oauth: needs exactly one of `client_secret` and `private_key`"),
        (CLIENT % "client_secret: a, private_key: b", "needs exactly one of `client_secret` and `private_key`"),
        (CLIENT % "client_secret: a, signing_algorithm: ES256", "oauth.signing_algorithm: not allowed with"),
        (CLIENT % "private_key: a, signing_algorithm: HS256", "oauth.signing_algorithm: Invalid enum value 'HS256'"),
        (CLIENT % "private_key: a, signing_algorithm: none", "oauth.signing_algorithm: Invalid enum value 'none'"),
        (CLIENT % "private_key: a, audience: 'https://b.example'", "sources.far.oauth.audience: requires"),
        (CLIENT % "private_key: {env: A, file: b}", "sources.far.oauth.private_key: needs exactly one of"),
        ("sources: {far: {command: x, login: {}}}", "sources.far.login: not allowed with `command`"),
        (LOGIN % "client_id: a, client_secret: b", "far.login.client_secret: needs `client_id` and `issuer`"),
        (LOGIN % "issuer: login.example", "sources.far.login.issuer: must begin with https://"),
        (LOGIN % "scope: a", "sources.far.login"),
        ("sources: {desk: {kind: langchain}}", "sources.desk: needs `load` or `entry_points`"),
        ("sources: {Files: {command: npx}}", "'Files' cannot be the name of a source"),
        ("sources: {20.4: {command: npx}}", "cannot be the name of a source"),
        ("sources: {files: {command: npx}, off: {command: npx}}", "False cannot be the name of a source"),
        ("sources: {c_ore: {command: npx}}", "`c_ore` reads like what the hub offers itself"),
        ("sources: {custom: {command: npx}}", "reads like what the hub offers"),
        ("sources: {my-files: {command: a}, my_files: {command: b}}", "by separators only"),
        ("sources: {files: {command: a}, files: {command: b}}", "`files` stands twice"),
        ("sources: {files: {command: a, command: b}}", "`command` stands twice"),
        ("sources: [", "not YAML"),
        ("sources: {files: {command: !!python/object/apply:os.system [id]}}", "not YAML"),
    ],
)
def test_an_invalid_entry_is_reported_by_its_place(text: str, expected: str) -> None:
    with pytest.raises(SettingsInvalid) as refusal:
        parse_sources(text, "sources.yaml")
    assert str(refusal.value).startswith("sources.yaml: ")
    assert expected in str(refusal.value)


def test_more_sources_than_a_hub_takes_are_refused() -> None:
    many = "sources:\n" + "".join(f"  s{number}: {{command: x}}\n" for number in range(65))
    with pytest.raises(SettingsInvalid, match="65 of them, at most 64"):
        parse_sources(many, "x")


def test_absent_file_means_no_sources_unless_the_configuration_names_it(tmp_path: Path) -> None:
    assert SourcesFile(tmp_path / "sources.yaml").load().sources == {}
    with pytest.raises(SettingsInvalid, match="No such file"):
        SourcesFile(tmp_path / "sources.yaml", required=True).load()


def test_a_vanished_file_is_an_error_and_no_removal_of_its_sources(tmp_path: Path) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text(GOOD)
    file = SourcesFile(path)
    assert file.has_changed()
    assert len(file.load().sources) == 3
    assert not file.has_changed()
    path.unlink()
    assert file.has_changed()
    with pytest.raises(SettingsInvalid):
        file.load()


def test_invalid_file_is_reported_once_and_seen_again_when_it_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text("sources: [")
    file = SourcesFile(path)
    with pytest.raises(SettingsInvalid):
        file.load()
    assert not file.has_changed()
    path.write_text(GOOD)
    assert file.has_changed()
    assert len(file.load().sources) == 3


def test_values_come_from_where_they_are_kept(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("c4nary\n")
    assert resolve_value("plain") == "plain"
    assert resolve_value(SecretRef(env="T", prefix="Bearer "), {"T": "abc"}) == "Bearer abc"
    assert resolve_value(SecretRef(file=str(secret), prefix="Bearer ")) == "Bearer c4nary"


def test_missing_value_is_reported_by_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ValueMissing, match="variable NOT_THERE is not set"):
        resolve_value(SecretRef(env="NOT_THERE"), {})
    with pytest.raises(ValueMissing, match="No such file"):
        resolve_value(SecretRef(file=str(tmp_path / "none")))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueMissing, match="not UTF-8") as refusal:
        resolve_value(SecretRef(file=str(binary)))
    assert "\xff" not in str(refusal.value)


# sources.yaml changed as text: what people wrote stays, and what cannot be followed is left alone.


MEMORY = {"memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}}
WRITTEN = """\
# ours
sources:
    # the documents
    files:   # read only
        command: npx   # from npm
        args:
            - -y
            - server   # the reference one
        # until August
    # the code host
    github: {url: "https://a.example/mcp"}

# the end
"""


@pytest.mark.parametrize("text", ["", "\n", "# mine\n", "sources:\n", "sources: {}\n", "sources: {}  # none yet"])
def test_first_source_begins_the_list(text: str) -> None:
    after = with_sources(text, MEMORY)
    assert yaml.safe_load(after) == {"sources": MEMORY}
    assert text.partition("#")[2].strip() in after


def test_reference_to_a_secret_stands_on_one_line() -> None:
    reference = {"file": f"/{'a-long-folder/' * 12}token", "prefix": "Bearer "}
    after = with_sources("", {"crm": {"url": "https://a.example", "headers": {"Authorization": reference}}})
    assert [line for line in after.splitlines() if line.strip().startswith("Authorization: {") and line.endswith("}")]


def test_source_is_put_after_the_others_in_their_indentation() -> None:
    after = with_sources(WRITTEN, MEMORY)
    assert after.startswith(WRITTEN[: WRITTEN.index("\n# the end")])
    assert after.endswith("\n\n# the end\n")
    assert "\n    memory:\n" in after
    assert list(yaml.safe_load(after)["sources"]) == ["files", "github", "memory"]


def test_text_without_a_last_line_end_is_added_to() -> None:
    after = with_sources("sources:\n  a: {command: b}", MEMORY)
    assert list(yaml.safe_load(after)["sources"]) == ["a", "memory"]


def test_removed_source_takes_its_own_comments_along_and_nobody_elses() -> None:
    without_files = without_source(WRITTEN, "files")
    assert "the documents" not in without_files
    assert "until August" not in without_files
    for kept in ("# ours", "# the code host", "# the end"):
        assert kept in without_files
    without_github = without_source(WRITTEN, "github")
    assert "the code host" not in without_github
    for kept in ("# the documents", "# read only", "# until August", "# the end"):
        assert kept in without_github


def test_last_source_leaves_an_empty_list_that_can_be_added_to() -> None:
    empty = without_source("sources:\n  a: {command: b}\n", "a")
    assert yaml.safe_load(empty) == {"sources": None}
    assert yaml.safe_load(with_sources(empty, MEMORY)) == {"sources": MEMORY}


def test_adding_and_removing_gives_the_same_text() -> None:
    assert without_source(with_sources(WRITTEN, MEMORY), "memory") == WRITTEN


@pytest.mark.parametrize(
    "text",
    [
        "sources: {a: {command: b}}\n",
        "[1]\n",
        "sources:\n  memory: {command: x}\n",
        "sources:\n  a: &one {command: b}\n  c: {<<: *one}\n...\n---\nsources: {}\n",
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"one line|no mapping|already|YAML"):
        with_sources(text, MEMORY)


def test_source_that_another_one_refers_to_is_not_taken_away() -> None:
    with pytest.raises(NotEditable):
        without_source("sources:\n  a: &one {command: b}\n  c: *one\n", "a")
