"""`toolhub sources add|remove|check`: lists of other clients become sources, and no secret stays in the clear."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from toolhub_service.adapters.mcp.kind import McpSource
from toolhub_service.app.config_files.sources_file import read_sources
from toolhub_service.cli.root import toolhub
from toolhub_service.sections.source_config import resolve_value

TOKEN = "ghp_" + "c4nary" * 6
SERVERS = {"memory": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own."""
    monkeypatch.setenv("TOOLHUB_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def cli(*words: str, code: int = 0, stdin: str = "") -> Result:
    result = CliRunner().invoke(toolhub, ["sources", *words], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


def run(*words: str, code: int = 0, stdin: str = "") -> Any:
    return json.loads(cli(*words, code=code, stdin=stdin).stdout)


def sources(home: Path) -> dict[str, Any]:
    return dict(read_sources(home / "data" / "sources.yaml").sources)


def source(home: Path, name: str) -> McpSource:
    found = sources(home)[name]
    assert isinstance(found, McpSource)
    return found


def added(home: Path, server: dict[str, Any], name: str = "server", *words: str) -> tuple[McpSource, list[str]]:
    """The source that this server becomes, and what was said of it."""
    answer = run("add", "-", *words, stdin=json.dumps({"mcpServers": {name: server}}))
    (shown,) = answer["added"]
    return source(home, shown["name"]), shown["notes"]


def refused(server: dict[str, Any]) -> str:
    answer = run("add", "-", stdin=json.dumps({"mcpServers": {"server": server}}), code=1)
    assert not answer["added"]
    return str(answer["refused"]["server"])


class TestFileFormats:
    @pytest.mark.parametrize(
        "document",
        [
            {"mcpServers": SERVERS, "theme": "dark"},
            {"servers": SERVERS, "inputs": []},
            {"mcp": {"servers": SERVERS}},
            {"context_servers": SERVERS},
            SERVERS,
        ],
    )
    def test_every_clients_document_is_read(self, home: Path, document: dict[str, Any]) -> None:
        file = home / "mcp.json"
        file.write_text(json.dumps(document))
        answer = run("add", str(file))
        assert [shown["name"] for shown in answer["added"]] == ["memory"]
        assert answer["grant"] == 'grants: [{principals: ["local"], capabilities: ["mcp:memory"]}]'
        assert source(home, "memory").args == ("-y", "@modelcontextprotocol/server-memory")

    def test_comments_and_trailing_commas_are_accepted(self, home: Path) -> None:
        text = '{ // mine\n "servers": { /* one */ "web": {"url": "https://a.example/mcp//x", "type": "http",}, }, }'
        run("add", "-", stdin=text)
        assert source(home, "web").url == "https://a.example/mcp//x"

    def test_one_server_takes_a_name(self, home: Path) -> None:
        refusal = cli("add", "-", stdin='{"command": "npx"}', code=2)
        assert "--name" in refusal.stderr
        run("add", "-", "--name", "memory", stdin='{"command": "npx"}')
        assert source(home, "memory").command == "npx"

    def test_name_picks_one_of_many(self, home: Path) -> None:
        many = json.dumps({"mcpServers": {**SERVERS, "other": {"command": "x"}}})
        run("add", "-", "--name", "other", stdin=many)
        assert list(sources(home)) == ["other"]
        assert "did you mean `memory`" in cli("add", "-", "--name", "memroy", stdin=many, code=2).stderr

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"mcpServers": {}}', '{"a": {"b": "c"}}'])
    def test_a_file_without_a_list_of_servers_is_refused(self, home: Path, text: str) -> None:
        assert "-: no" in cli("add", "-", stdin=text, code=2).stderr
        assert not (home / "data").exists()

    def test_command_stands_after_two_dashes(self, home: Path) -> None:
        run("add", "memory", "--env", "LEVEL=info", "--env", "KEY={env: MEMORY_KEY}", "--", "npx", "-y", "server")
        memory = source(home, "memory")
        assert (memory.command, memory.args, memory.env["LEVEL"]) == ("npx", ("-y", "server"), "info")
        assert resolve_value(memory.env["KEY"], {"MEMORY_KEY": "abc"}) == "abc"

    def test_url_has_headers_and_trust(self, home: Path) -> None:
        header = "Authorization: Bearer {env: CRM_TOKEN}"
        run("add", "crm", "--url", "https://a.example/mcp", "--header", header, "--trust", "approval")
        crm = source(home, "crm")
        assert (crm.url, crm.trust) == ("https://a.example/mcp", "approval")
        assert resolve_value(crm.headers["Authorization"], {"CRM_TOKEN": "abc"}) == "Bearer abc"

    @pytest.mark.parametrize(
        ("words", "advice"),
        [
            (["add", "nowhere.json"], "There is no file"),
            (["add", "x", "--url", "https://a", "--", "npx"], "not both"),
            (["add", "x", "--header", "A: b", "--", "npx"], "--header goes with --url"),
            (["add", "x", "--env", "A=b", "--url", "https://a"], "--env goes with a command"),
            (["add", "x", "--header", "broken", "--url", "https://a"], "--header takes NAME:VALUE"),
        ],
    )
    def test_wrong_usage_is_reported(self, home: Path, words: list[str], advice: str) -> None:
        assert advice in cli(*words, code=2).stderr


class TestSecrets:
    @pytest.mark.promise("sources.secrets-move")
    def test_secret_in_the_clear_moves_into_a_file_of_its_own(self, home: Path) -> None:
        found, _ = added(home, {"command": "x", "env": {"GITHUB_TOKEN": TOKEN, "LEVEL": "info"}}, "github")
        file = home / "data" / "secrets" / "github.GITHUB_TOKEN"
        assert file.read_text() == TOKEN
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert TOKEN not in (home / "data" / "sources.yaml").read_text()
        assert found.env["LEVEL"] == "info"
        assert resolve_value(found.env["GITHUB_TOKEN"]) == TOKEN

    def test_secret_is_known_by_its_looks_under_any_name(self, home: Path) -> None:
        found, _ = added(home, {"command": "x", "env": {"DATABASE": "postgres://me:c4nary-pass@db/x", "WHO": TOKEN}})
        text = (home / "data" / "sources.yaml").read_text()
        assert "c4nary" not in text
        assert resolve_value(found.env["DATABASE"]) == "postgres://me:c4nary-pass@db/x"

    def test_scheme_of_a_header_stays_where_it_can_be_read(self, home: Path) -> None:
        found, _ = added(home, {"url": "https://a.example/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}})
        assert (home / "data" / "secrets" / "server.Authorization").read_text() == TOKEN
        assert resolve_value(found.headers["Authorization"]) == f"Bearer {TOKEN}"
        assert "prefix: 'Bearer '" in (home / "data" / "sources.yaml").read_text()

    def test_password_of_a_url_becomes_a_header(self, home: Path) -> None:
        found, notes = added(home, {"url": "https://me:c4n%40ry@a.example/mcp"})
        assert found.url == "https://a.example/mcp"
        assert resolve_value(found.headers["Authorization"]) == "Basic bWU6YzRuQHJ5"
        assert any("sent as a header" in note for note in notes)

    @pytest.mark.parametrize(
        ("args", "kept"), [(["--api-key", TOKEN], ["--api-key", TOKEN]), ([f"--token={TOKEN}"], [f"--token={TOKEN}"])]
    )
    def test_secret_among_arguments_goes_into_a_file_of_its_own(
        self, home: Path, args: list[str], kept: list[str]
    ) -> None:
        found, notes = added(home, {"command": "npx", "args": args})
        assert [resolve_value(argument) for argument in found.args] == kept
        assert TOKEN not in (home / "data" / "sources.yaml").read_text()
        assert any("list processes" in note for note in notes)

    def test_url_with_a_secret_goes_into_a_file_of_its_own(self, home: Path) -> None:
        url = f"https://a.example/mcp?api_key={TOKEN}"
        found, _ = added(home, {"url": url})
        assert resolve_value(found.url) == url
        assert TOKEN not in (home / "data" / "sources.yaml").read_text()

    def test_variables_of_arguments_and_url_become_references(self, home: Path) -> None:
        found, _ = added(home, {"command": "x", "args": ["--root=${ROOT}"]}, "one")
        assert resolve_value(found.args[0], {"ROOT": "/srv"}) == "--root=/srv"
        found, _ = added(home, {"url": "${env:MCP_URL}"}, "two")
        assert resolve_value(found.url, {"MCP_URL": "https://a.example"}) == "https://a.example"

    def test_no_part_of_a_secret_is_shown(self, home: Path) -> None:
        server = {"command": "x", "env": {"GITHUB_TOKEN": TOKEN}}
        for words in (["--dry-run"], []):
            assert TOKEN not in cli("add", "-", *words, stdin=json.dumps({"mcpServers": {"server": server}})).output

    @pytest.mark.parametrize(
        ("written", "variable", "prefix"),
        [
            ("${env:KEY}", "KEY", ""),
            ("${KEY}", "KEY", ""),
            ("Bearer ${KEY:-none}", "KEY", "Bearer "),
            ("Bearer ${input:api-key}", "API_KEY", "Bearer "),
        ],
    )
    def test_variable_becomes_a_reference(self, home: Path, written: str, variable: str, prefix: str) -> None:
        found, _ = added(home, {"url": "https://a.example/mcp", "headers": {"Authorization": written}})
        assert resolve_value(found.headers["Authorization"], {variable: "abc"}) == f"{prefix}abc"

    def test_file_that_holds_something_else_is_not_overwritten(self, home: Path) -> None:
        server = {"command": "x", "env": {"GITHUB_TOKEN": TOKEN}}
        added(home, server)
        cli("remove", "server")
        other = json.dumps({"mcpServers": {"server": {**server, "env": {"GITHUB_TOKEN": TOKEN + "x"}}}})
        assert "exists with other content" in run("add", "-", stdin=other, code=1)["refused"]["server"]
        assert (home / "data" / "secrets" / "server.GITHUB_TOKEN").read_text() == TOKEN
        run("add", "-", "--replace", stdin=other)
        assert (home / "data" / "secrets" / "server.GITHUB_TOKEN").read_text() == TOKEN + "x"


class TestUnsupportedSettings:
    @pytest.mark.parametrize(
        ("server", "why"),
        [
            ({"type": "sse", "url": "https://a.example/sse"}, "streamable HTTP"),
            ({"command": "x", "args": ["${workspaceFolder}"]}, "more than a text and one variable"),
            ({"command": "x", "env": {"A": "${userHome}/x"}}, "more than a text and one variable"),
            ({"command": "x", "env": {"A": "${A}:${B}"}}, "more than a text and one variable"),
            ({"command": "x", "env": {"A": "${userHome}"}}, "more than a text and one variable"),
            ({"url": "https://${HOST}/mcp"}, "more than a text and one variable"),
            ({"url": "file:///etc/passwd"}, "must begin with http"),
            ({"command": "x", "env": {"A": ["b"]}}, "must hold texts"),
            ({"command": {"path": "x"}}, "must be a text"),
        ],
    )
    def test_server_that_cannot_be_a_source_is_refused_with_advice(
        self, home: Path, server: dict[str, Any], why: str
    ) -> None:
        assert why in refused(server)
        assert not (home / "data").exists()

    def test_settings_left_out_of_an_import_are_named(self, home: Path) -> None:
        found, notes = added(
            home, {"command": "x", "autoApprove": ["*"], "timeout": 5, "surprise": 1, "disabled": True}, "My Server!"
        )
        assert not found.enabled
        text = "\n".join(notes)
        for words in ("'My Server!' became 'my-server'", "policy.yaml", "timeout_s", "`surprise` is left out", "off"):
            assert words in text

    def test_reserved_name_is_changed(self, home: Path) -> None:
        added(home, {"command": "x"}, "core")
        assert list(sources(home)) == ["core-mcp"]

    def test_others_of_the_list_are_added_anyway(self, home: Path) -> None:
        listed = {"mcpServers": {**SERVERS, "old": {"type": "sse", "url": "https://a.example/sse"}}}
        answer = run("add", "-", stdin=json.dumps(listed), code=1)
        assert [shown["name"] for shown in answer["added"]] == ["memory"]
        assert list(answer["refused"]) == ["old"]


class TestFile:
    def test_handwritten_entries_stay(self, home: Path) -> None:
        file = home / "mine.yaml"
        file.write_text("# mine\nsources:\n  # the first\n  a: {command: b}   # so\n")
        run("add", "c", "--file", str(file), "--", "d")
        run("remove", "c", "--file", str(file))
        assert file.read_text() == "# mine\nsources:\n  # the first\n  a: {command: b}   # so\n"

    def test_source_that_is_there_is_not_overwritten_unless_asked(self, home: Path) -> None:
        run("add", "memory", "--", "one")
        assert "--replace" in run("add", "memory", "--", "two", code=1)["refused"]["memory"]
        assert source(home, "memory").command == "one"
        for words in (["--dry-run"], []):
            (shown,) = run("add", "memory", "--replace", *words, "--", "two")["added"]
            assert shown["replaced"] is True
        (shown,) = run("add", "other", "--replace", "--", "three")["added"]
        assert shown["replaced"] is False
        assert source(home, "memory").command == "two"
        assert "separators only" in run("add", "mem_ory", "--", "x", code=1)["refused"]["mem_ory"]

    def test_dry_run_writes_nothing(self, home: Path) -> None:
        answer = run("add", "memory", "--dry-run", "--", "npx")
        assert (answer["dryRun"], len(answer["added"])) == (True, 1)
        assert not (home / "data").exists()

    def test_file_that_cannot_be_followed_is_left_alone(self, home: Path) -> None:
        file = home / "mine.yaml"
        file.write_text("sources: {a: {command: b}}\n")
        assert "lines of its own" in cli("add", "c", "--file", str(file), "--", "d", code=1).stderr
        assert file.read_text() == "sources: {a: {command: b}}\n"

    def test_an_invalid_file_is_reported_and_left_unchanged(self, home: Path) -> None:
        file = home / "mine.yaml"
        file.write_text("sources:\n  a: {comand: b}\n")
        assert "did you mean `command`" in cli("add", "c", "--file", str(file), "--", "d", code=1).stderr
        assert "did you mean `command`" in run("check", "--json", str(file), code=1)["problem"]

    def test_link_stays_a_link_and_the_mode_what_it_was(self, home: Path) -> None:
        real, link = home / "real.yaml", home / "link.yaml"
        real.write_text("sources: {}\n")
        real.chmod(0o640)
        link.symlink_to(real)
        run("add", "c", "--file", str(link), "--", "d")
        assert link.is_symlink()
        assert real.stat().st_mode & 0o777 == 0o640
        assert yaml.safe_load(real.read_text()) == {"sources": {"c": {"command": "d"}}}

    def test_unknown_source_cannot_be_removed(self, home: Path) -> None:
        run("add", "memory", "--", "npx")
        assert "Did you mean memory?" in cli("remove", "memroy", code=1).stderr

    def test_removal_names_the_secrets_that_stay(self, home: Path) -> None:
        added(home, {"command": "x", "env": {"GITHUB_TOKEN": TOKEN}})
        assert run("remove", "server")["secretFiles"] == [str(home / "data" / "secrets" / "server.GITHUB_TOKEN")]

    def test_the_check_counts_in_singular_and_plural(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("toolhub_service.cli.sources.files.wants_json", lambda _: False)
        run("add", "a", "--", "x")
        assert "is valid: 1 source\n" in cli("check").stdout
        run("add", "b", "--", "x")
        assert "is valid: 2 sources\n" in cli("check").stdout

    def test_the_check_names_missing_programs_and_variables(self, home: Path) -> None:
        run("add", "a", "--env", "KEY={env: NOT_SET_ANYWHERE}", "--", "no-such-program-1")
        run("add", "b", "--url", "https://a.example/mcp")
        missing = run("check", "--json")["missing"]
        assert missing["b"] == []
        assert ["no-such-program-1" in missing["a"][0], "NOT_SET_ANYWHERE" in missing["a"][1]] == [True, True]

    def test_check_refuses_file_tools_that_take_any_path(self, home: Path) -> None:
        """Fails at befa727: nothing is said of them."""
        load = "langchain_community.agent_toolkits:FileManagementToolkit"
        file = home / "files.yaml"
        file.write_text(f"sources: {{files: {{kind: langchain, load: ['{load}']}}}}")
        assert any(
            "args: {root_dir: FOLDER}" in line for line in run("check", "--json", str(file), code=1)["missing"]["files"]
        )
        file.write_text(f"sources: {{files: {{kind: langchain, load: ['{load}'], args: {{root_dir: a}}}}}}")
        assert not any("root_dir" in line for line in run("check", "--json", str(file))["missing"]["files"])

    def test_check_without_a_file_finds_no_sources_unless_one_is_named(self, home: Path) -> None:
        assert run("check", "--json")["sources"] == []
        assert "No such file" in run("check", "--json", str(home / "none.yaml"), code=1)["problem"]

    def test_shell_completes_what_can_be_removed(self, home: Path) -> None:
        completer = BashComplete(toolhub, {}, "toolhub", "X")
        assert completer.get_completions(["sources", "remove"], "m") == []
        run("add", "memory", "--", "npx")
        assert [item.value for item in completer.get_completions(["sources", "remove"], "m")] == ["memory"]


class TestReports:
    """Output for people on a terminal."""

    @pytest.fixture(autouse=True)
    def terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("toolhub_service.cli.sources.adding.wants_json", lambda as_json: as_json)
        monkeypatch.setattr("toolhub_service.cli.sources.files.wants_json", lambda as_json: as_json)

    def test_a_source_that_was_there_is_reported_as_replaced(self, home: Path) -> None:
        assert "a is added to " in cli("add", "a", "--", "sh").stdout
        assert "a would be replaced in " in cli("add", "a", "--replace", "--dry-run", "--", "sh").stdout
        replaced = cli("add", "a", "--replace", "--", "sh").stdout
        assert "a is replaced in " in replaced
        assert "added" not in replaced
        assert "b is added to " in cli("add", "b", "--replace", "--", "sh").stdout

    @pytest.mark.parametrize("words", [(), ("--dry-run",)])
    def test_a_program_that_is_not_on_the_path_is_warned_of(self, home: Path, words: tuple[str, ...]) -> None:
        given = ("add", "a", *words, "--env", f"GITHUB_TOKEN={TOKEN}", "--", "no-such-program-1")
        warned = cli(*given)
        assert "! the program `no-such-program-1` is not on the PATH" in warned.stderr
        assert "there is no file" not in warned.stderr
        (shown,) = run(*given[:2], "--replace", "--json", *given[2:])["added"]
        assert shown["missing"] == ["the program `no-such-program-1` is not on the PATH"]
        assert not cli("add", "b", "--", "sh").stderr

    def test_the_next_step_is_a_check_of_this_source_alone(self, home: Path) -> None:
        assert "toolhub sources check a\n" in cli("add", "a", "--", "no-such-program-1").stdout
        cli("add", "b", "--", "sh")
        only = cli("check", "b")
        assert "✓ b" in only.stdout
        assert "no-such-program-1" not in only.stdout
        assert list(json.loads(cli("check", "a", "--json").stdout)["missing"]) == ["a"]
        assert "There is no source 'bb'" in cli("check", "bb", code=1).stderr

    def test_the_next_step_finds_the_file_that_was_written(self, home: Path) -> None:
        place = f"--file '{home / 'of mine.yaml'}' --data-dir {home / 'other'}"
        advice = cli("add", "a", *shlex.split(place), "--", "sh").stdout
        assert f"toolhub sources check a {place}\n" in advice
        assert "✓ a" in cli("check", "a", *shlex.split(place)).stdout
        assert "toolhub sources refresh a\n" in advice  # asks the hub, which knows its own file

    def test_a_folder_of_that_name_is_not_taken_for_a_file(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli("add", "memory", "--", "sh")
        (tmp_path / "memory").mkdir()
        monkeypatch.chdir(tmp_path)
        assert "✓ memory" in cli("check", "memory").stdout
