"""The commands that need no hub, and the start of one, through real processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.e2e.command_line import CommandLine, serving
from tests.e2e.terminal import environment, terminal
from toolhub_service.app.config_files.key_file import KeyFile, Wanted
from toolhub_service.cli.root import toolhub

COMMANDS = [
    ("serve",),
    ("call",),
    ("health",),
    ("doctor",),
    ("completion",),
    *(("tools", name) for name in ("list", "search", "show", "export", "register", "unregister", "snapshot")),
    *(("policy", name) for name in ("init", "check", "explain", "schema")),
    *(("audit", name) for name in ("tail", "export", "verify", "rotate-key")),
    *(("config", name) for name in ("check", "show", "schema")),
    *(("jobs", name) for name in ("submit", "list", "show", "watch", "result", "cancel")),
    *(("artifacts", name) for name in ("put", "get", "show")),
    *(("approvals", name) for name in ("list", "show", "approve", "deny", "watch")),
    *(("keys", name) for name in ("create", "list", "rotate", "revoke")),
]


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(toolhub, [*words, "--help"], prog_name="toolhub")
    assert result.exit_code == 0
    assert f"  toolhub {' '.join(words)}" in result.output or f'"$(toolhub {words[0]}' in result.output


def test_the_list_of_commands_waits_for_nothing_that_it_does_not_need(cli: CommandLine) -> None:
    """What makes a start slow is what it imports: nothing but click and our own few modules."""
    print_imported = "lambda: print('imported:', *{name.partition('.')[0] for name in sys.modules})"
    program = (
        f"import atexit, sys; from toolhub_service.__main__ import main; atexit.register({print_imported}); main()"
    )
    command = [sys.executable, "-c", program, "--help"]
    done = subprocess.run(command, env=cli.env, capture_output=True, text=True, check=False)
    assert "Use tools:" in done.stdout, done.stderr
    imported = set(done.stdout.rpartition("imported:")[2].split())
    # Of an editable installation comes _distutils_hack, of Debian's Python sitecustomize.
    of_the_machine = {"__main__", "_distutils_hack", "sitecustomize"}
    assert imported - sys.stdlib_module_names - of_the_machine == {"click", "toolhub_service"}
    assert not imported & {"asyncio", "multiprocessing", "sqlite3", "ssl", "unittest"}


def test_help_names_every_command_once(cli: CommandLine) -> None:
    text = cli("--help").out
    for name in {words[0] for words in COMMANDS} | {"sources", "workflows", "pins"}:
        assert text.count(f"\n  {name} ") == 1


def test_the_version_is_printed(cli: CommandLine) -> None:
    assert cli("--version").out.startswith("toolhub, version ")


def test_a_policy_is_begun_once_checked_and_never_overwritten(cli: CommandLine) -> None:
    assert cli("policy", "check", "-o", "json").json["file"] == ""
    assert cli("policy", "init").code == 0
    file = cli.data_dir / "policy.yaml"
    file.write_text(file.read_text() + "\nrules: []\n")
    again = cli("policy", "init")
    assert again.code == 1
    assert file.read_text().endswith("rules: []\n")
    checked = cli("policy", "check", "-o", "json")
    assert (checked.code, checked.json["file"]) == (0, str(file))


def test_an_invalid_policy_is_reported_with_its_line(cli: CommandLine) -> None:
    file = cli.home / "bad.yaml"
    file.write_text("grants:\n  - principal: [a]\n")
    result = cli("policy", "check", str(file), "-o", "json")
    assert (result.code, result.json["ok"], result.json["line"]) == (1, False, 2)
    shown = cli.shown("policy", "check", str(file))
    assert shown.code == 1
    assert "did you mean `principals`?" in shown.text
    assert cli("policy", "check", "/nowhere.yaml").code == 2


def test_a_name_that_fits_nothing_known_is_a_warning_and_fails_a_strict_check(cli: CommandLine) -> None:
    """At befa727 a misspelt tool in a DENY rule was valid, and no warning named it."""
    file = cli.home / "typo.yaml"
    file.write_text(
        "extends: none\nrules:\n  - id: never\n    effect: DENY\n    tools: [core/fs.deletPath, 'files/*']\n"
    )
    loose, strict = (cli("policy", "check", str(file), *more, "-o", "json") for more in ((), ("--strict",)))
    assert (loose.code, strict.code) == (0, 1)
    assert loose.json["warnings"] == [
        "line 5, rules[0].tools[0]: `core/fs.deletPath` matches no known tool; did you mean `core/fs.deletePath`?",
        "line 5, rules[0].tools[1]: `files/*` matches no known tool",
    ]
    assert "did you mean `core/fs.deletePath`?" in " ".join(cli.shown("policy", "check", str(file)).text.split())
    cli.data_dir.mkdir(parents=True, exist_ok=True)
    (cli.data_dir / "sources.yaml").write_text("sources: {files: {kind: mcp, command: cat}}\n")
    assert len(cli("policy", "check", str(file), "-o", "json").json["warnings"]) == 1
    file.write_text("extends: none\ngrants: [{principals: [bot], capabilities: ['read:*', 'mcp:files', 'reed:fs']}]\n")
    assert "read:fs" in cli("policy", "check", "--strict", str(file), "-o", "json").json["warnings"][0]
    file.write_text("extends: none\ngrants: [{principals: [bot], capabilities: ['read:*', 'mcp:files']}]\n")
    assert cli("policy", "check", "--strict", str(file)).code == 0


def test_explaining_shows_each_thing_considered_and_the_verdict(cli: CommandLine) -> None:
    allowed = cli("policy", "explain", "core/fs.readText", "--args", '{"path": "a"}')
    assert (allowed.code, allowed.json["verdict"]["effect"]) == (0, "ALLOW")
    denied = cli("policy", "explain", "--tool", "core/fs.readText", "--args", '{"path": "../a"}')
    assert (denied.code, denied.json["verdict"]["ruleId"]) == (1, "guard:path")
    considered = {each["id"]: each["matched"] for each in denied.json["considerations"]}
    assert considered["guard:path"] is True
    assert considered["capabilities"] is False


def test_explaining_takes_another_policy_and_principal(cli: CommandLine) -> None:
    file = cli.home / "policy.yaml"
    file.write_text("grants: [{principals: [bot], capabilities: [network]}]\negress: [{hosts: [a.example]}]\n")
    words = (
        "policy",
        "explain",
        "--policy",
        str(file),
        "--principal",
        "bot",
        "--tool",
        "core/http.fetchText",
        "--args",
    )
    assert cli(*words, '{"url": "https://a.example/"}').code == 0
    assert cli(*words, '{"url": "https://b.example/"}').json["verdict"]["kind"] == "HTTP_DISALLOWED_HOST"


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--tool", "core/fs.readTex"), 1, "Did you mean core/fs.readText"),
        (("--tool", "core/fs.readText"), 1, "path"),
        (("--tool", "core/fs.readText", "--args", "{bad"), 2, "not JSON"),
        (("--tool", "core/fs.readText", "--args", "@/nowhere"), 2, "No such file"),
        ((), 2, "--tool"),
    ],
)
def test_a_call_that_cannot_be_explained_states_why(
    cli: CommandLine, words: list[str], code: int, expected: str
) -> None:
    explained = cli("policy", "explain", *words)
    assert explained.code == code
    assert expected in explained.err


def test_explaining_without_a_hub_states_that_tools_of_sources_are_unknown(cli: CommandLine) -> None:
    """A configured source whose name is like `core`, and one that only a hub elsewhere has."""
    cli.data_dir.mkdir(parents=True)
    (cli.data_dir / "sources.yaml").write_text("sources: {cores: {kind: mcp, command: cat}}\n")
    for tool in ("time/get_current_time", "cores/fs.readText"):
        explained = cli("policy", "explain", "--tool", tool)
        assert explained.code == 1
        assert f"toolhub tools show {tool}" in explained.err
        assert "Did you mean" not in explained.err
    assert "Did you mean core/fs.readText" in cli("policy", "explain", "--tool", "cor/fs.readText").err


def test_the_doctor_finds_a_fit_machine_and_a_clean_configuration(cli: CommandLine) -> None:
    result = cli("doctor", "--json")
    found = {finding["name"]: finding for finding in result.json["findings"]}
    assert result.code == 0, result.out
    assert {"python", "versions", "data folder", "disk space", "file opening", "policy", "auth"} <= set(found)
    assert "tools have what they need on this machine (the policy is not considered)" in found["tools"]["told"]
    assert not (cli.home / ".local").exists()
    assert "python" in cli.shown("doctor").text


def test_the_doctor_names_what_must_be_put_right(cli: CommandLine) -> None:
    cli.data_dir.mkdir(parents=True)
    (cli.data_dir / "policy.yaml").write_text("rule: []")
    key = cli.data_dir / "audit.key"
    key.write_text("x")
    key.chmod(0o644)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = cli("doctor", "--json", TOOLHUB_METRICS_LISTEN=f"127.0.0.1:{port}", TOOLHUB_SERVER_LISTEN="0.0.0.0:0")
    states = {finding["name"]: finding["state"] for finding in result.json["findings"]}
    assert result.code == 1
    assert states["policy"] == states["key files"] == states["auth"] == "fail"
    assert states["metrics port"] == "fail"


def test_the_doctor_names_keys_of_principals_that_the_policy_does_not_know(cli: CommandLine) -> None:
    (cli.data_dir / "policy.yaml").parent.mkdir(parents=True)
    (cli.data_dir / "policy.yaml").write_text("grants: [{principals: [ann]}]")
    for name in ("ann", "stranger"):
        assert cli("keys", "create", name).code == 0
    result = cli("doctor", "--json", TOOLHUB_AUTH_MODES="api-key")
    (auth,) = [finding for finding in result.json["findings"] if finding["name"] == "auth"]
    assert auth["state"] == "warn"
    assert "stranger" in auth["told"]
    assert "ann" not in auth["told"]


def test_the_doctor_names_keys_that_have_expired_or_do_so_soon(cli: CommandLine) -> None:
    cli.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = KeyFile(cli.data_dir / "api-keys.yaml")
    for number, expires_s in enumerate((int(time.time()) - 60, int(time.time()) + 90 * 86_400)):
        file.create("local", Wanted(expires_s))
        result = cli("doctor", "--json")
        (auth,) = [finding for finding in result.json["findings"] if finding["name"] == "auth"]
        ids = [key["id"] for key in cli("keys", "list", "-o", "json").json]
        assert (auth["state"], "that expired" in auth["told"]) == ("warn", True)
        assert sum(key_id in auth["told"] for key_id in ids) == 1, number
        assert "toolhub keys rotate" in auth["advice"]


def test_the_doctor_names_the_tools_that_something_disables(cli: CommandLine) -> None:
    result = cli(
        "doctor",
        "--json",
        TOOLHUB_TOOLS_CUSTOM='[{"tool": "acme.nowhere:Tool"}]',
        TOOLHUB_TOOLS_TRUSTED_NAMESPACES="acme",
    )
    disabled = [finding for finding in result.json["findings"] if finding["disables"]]
    assert disabled
    assert all(finding["advice"] for finding in disabled)


def test_keys_are_made_listed_and_revoked_and_kept_as_hashes(cli: CommandLine) -> None:
    assert "toolhub keys create" in cli.shown("keys", "list").text
    made = cli("keys", "create", "research-agent", "--json").json
    head = ["KEY", "PRINCIPAL", "CREATED", "LAST", "USED", "EXPIRES", "SCOPE"]
    assert cli("keys", "list").out.splitlines()[0].split() == head
    assert made["key"] not in (cli.data_dir / "api-keys.yaml").read_text()
    (listed,) = cli("keys", "list", "-o", "json").json
    assert listed["name"] == "research-agent"
    assert cli("keys", "revoke", listed["id"]).code == 0
    assert cli("keys", "revoke", listed["id"]).code == 1


def test_a_second_key_of_a_principal_prints_how_to_revoke_the_former(cli: CommandLine) -> None:
    first = cli("keys", "create", "ann")
    assert "revoke" not in first.err
    (former,) = (stored["id"] for stored in cli("keys", "list", "-o", "json").json)
    second = cli("keys", "create", "ann")
    assert "'ann' now has 2 keys." in second.err
    assert f"toolhub keys revoke {former}" in second.err
    assert second.out.startswith("thk_")
    assert "keys revoke" not in cli("keys", "create", "bob").err


@pytest.mark.parametrize("name", ["", "ann lee", "ann\n", "ann\x1b[2J", "\u00a0"])
def test_the_name_of_a_principal_with_a_space_or_a_control_character_is_refused(cli: CommandLine, name: str) -> None:
    refused = cli("keys", "create", name)
    assert (refused.code, refused.out) == (2, "")
    assert "no spaces and no control characters" in " ".join(refused.err.split())
    assert "\x1b" not in refused.err
    assert cli("keys", "list", "-o", "json").json == []


def test_configuration_is_shown_and_checked(cli: CommandLine) -> None:
    file = cli.home / "toolhub.yaml"
    file.write_text("server: {workers: 2}")
    assert cli("config", "show", "--config", str(file)).json["server"]["workers"] == 2
    assert cli("config", "check", "--config", str(file), "-o", "json").json == {"ok": True}
    assert cli("config", "check", str(file), "-o", "json").json == {"ok": True}
    file.write_text("server: {worker: 2}")
    wrong = cli("config", "check", str(file), "-o", "json")
    assert (wrong.code, wrong.json["ok"]) == (1, False)
    assert "did you mean workers?" in wrong.json["problem"]
    assert "did you mean workers?" in cli.shown("config", "check", "--config", str(file)).text
    addresses = "listen: localhost", "mcp: {listen: ''}", "tls: {keys_listen: localhost}"
    for setting in (*(f"server: {{{each}}}" for each in addresses), "metrics: {listen: '127.0.0.1'}"):
        file.write_text(setting)
        unusable = cli("config", "check", str(file))
        assert (unusable.code, "which is no address" in unusable.err) == (1, True), (setting, unusable)
    assert "listen" in str(cli("config", "schema").json)
    assert "server.listen" in cli("config", "schema", "--reference").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_program(cli: CommandLine, shell: str) -> None:
    assert "_TOOLHUB_COMPLETE" in cli("completion", shell).out


def test_a_missing_audit_log_is_reported(cli: CommandLine) -> None:
    for command in ("verify", "export"):
        result = cli("audit", command, "--data-dir", "/nowhere")
        assert result.code == 1
        assert "no audit log" in result.err


def test_a_changed_event_is_named_when_the_hub_is_gone(tmp_path: Path) -> None:
    with serving(tmp_path) as cli:
        assert cli("call", "core/util.hash.sha256Text", "text=x").code == 0
    database = cli.data_dir / "audit.db"
    assert cli("audit", "verify", "--data-dir", str(cli.data_dir)).code == 0
    data = database.read_bytes()
    assert b"core/util.hash.sha256Text" in data
    database.write_bytes(data.replace(b"core/util.hash.sha256Text", b"core/util.hash.sha257Text"))
    shown = cli.shown("audit", "verify", "--data-dir", str(cli.data_dir))
    assert shown.code == 1
    assert "✗ writer" in shown.text


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--address", "unix:/nowhere.sock"), 3, "No hub answers at unix:/nowhere.sock. Start one"),
        (("--ca-file", "policy.yaml"), 2, "--ca-file policy.yaml: "),
        (("--ca-file", __file__), 2, "the file contains no PEM certificate"),
    ],
)
def test_an_unusable_hub_is_reported_with_the_reason(
    cli: CommandLine, words: tuple[str, ...], code: int, expected: str
) -> None:
    asked = cli("health", *words)
    assert (asked.code, asked.out) == (code, "")
    assert expected in asked.err


def test_a_taken_port_is_reported_in_one_line(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as first:
        other = CommandLine(tmp_path)("serve", "--listen", first.address, TOOLHUB_METRICS_LISTEN="")
    assert other.code == 1
    assert first.address in other.err


@pytest.mark.parametrize(("name", "text"), [("api-keys.yaml", "- x"), ("plan.key", "zz"), ("policy.yaml", "rule: 1")])
def test_a_broken_file_is_named_and_nothing_is_served(cli: CommandLine, name: str, text: str) -> None:
    cli.data_dir.mkdir(parents=True)
    (cli.data_dir / name).write_text(text)
    refused = cli("serve", "--listen", "127.0.0.1:0", TOOLHUB_METRICS_LISTEN="")
    assert refused.code == 1
    assert name in refused.err


def test_serving_everybody_without_credentials_is_refused(cli: CommandLine) -> None:
    refused = cli("serve", "--listen", "0.0.0.0:0")
    assert refused.code == 1
    assert "api-key" in refused.err


@pytest.mark.parametrize(("form", "is_shown"), [("auto", True), ("json", False)])
def test_serving_ends_well_at_ctrl_c_and_prints_where_its_files_are(tmp_path: Path, form: str, is_shown: bool) -> None:
    env = environment(tmp_path, TOOLHUB_METRICS_LISTEN="127.0.0.1:0", TOOLHUB_LOGS_FORMAT=form)
    with terminal(["toolhub", "serve", "--listen", "127.0.0.1:0"], env) as (process, screen):
        screen.wait_for("tools list\n")
        screen.type(b"\x03")
        shown = screen.rest()
        assert "Traceback" not in shown
        goodbye = f"Stopped. Jobs, audit log and settings are in {tmp_path}/.local/share/toolhub\n"
        assert (goodbye in shown) is is_shown
        assert process.wait(60) == 0


def test_rotated_audit_key_signs_the_next_run_and_the_log_of_both_verifies(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        assert first("call", "core/util.time.now").code == 0
    cli = CommandLine(tmp_path)
    assert cli("audit", "rotate-key").code == 0
    with serving(tmp_path) as second:
        assert second("call", "core/util.time.now").code == 0
    files = ("--data-dir", str(cli.data_dir))
    assert cli("audit", "verify", *files).code == 0
    signed_by = {json.loads(line)["keyId"] for line in cli("audit", "export", *files).out.splitlines()}
    assert len(signed_by) == 2
