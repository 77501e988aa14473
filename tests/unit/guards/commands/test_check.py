from __future__ import annotations

import os
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.outcomes import outcome
from toolhub_service.domain.errors.failure import ErrorKind, ToolError, ToolFailure
from toolhub_service.domain.verdict import CommandRule, FlagRule
from toolhub_service.guards.commands.check import (
    MAX_ARGUMENT_CHARS,
    MAX_ARGUMENTS,
    argv_of,
    check_command,
    check_environment,
    rule_faults,
)
from toolhub_service.guards.commands.safe import SAFE_COMMANDS, safe_commands
from toolhub_service.guards.commands.split import MAX_COMMAND_CHARS, split_command

LIST = CommandRule(
    name="list",
    path="/opt/bin/list",
    flags=(FlagRule("-l"), FlagRule("-a"), FlagRule("-n", "[0-9]+"), FlagRule("--depth", "[0-9]"), FlagRule("--all")),
    positionals="[a-z./]+",
    positionals_are_paths=True,
    positionals_max=2,
    environment={"MODE": "plain", "TOPIC": ""},
)
GIT = CommandRule(name="git", path="/opt/bin/git", flags=(FlagRule("--oneline"),), subcommands=("log", "status"))
BROKEN = CommandRule(name="broken", path="/opt/bin/broken", positionals="(", end_of_options=False)
RULES = (LIST, GIT, BROKEN)


def refusal(argv: list[str], rules: tuple[CommandRule, ...] = RULES) -> ToolError:
    with pytest.raises(ToolFailure) as caught:
        check_command(argv, rules)
    return caught.value.error


@pytest.mark.promise("exec.grammar")
@pytest.mark.parametrize(
    ("argv", "final"),
    [
        (["list"], ()),
        (["list", "-l", "src"], ("-l", "--", "src")),
        (["list", "src", "-l"], ("-l", "--", "src")),
        (["list", "-la"], ("-la",)),
        (["list", "-n", "5"], ("-n", "5")),
        (["list", "-n5"], ("-n5",)),
        (["list", "--depth=3"], ("--depth=3",)),
        (["list", "--depth", "3", "a", "b"], ("--depth", "3", "--", "a", "b")),
        (["list", "--", "a"], ("--", "a")),
        (["git", "log", "--oneline"], ("log", "--oneline")),
    ],
)
def test_a_command_within_its_grammar_runs_as_its_absolute_binary(argv: list[str], final: tuple[str, ...]) -> None:
    checked = check_command(argv, RULES)
    assert checked.argv == (f"/opt/bin/{argv[0]}", *final)
    assert checked.rule == argv[0]


@pytest.mark.parametrize(
    "argv",
    [
        ["list", "-x"],
        ["list", "--exec=sh"],
        ["list", "--al"],
        ["list", "-n"],
        ["list", "-n", "-5"],
        ["list", "-n", "5;id"],
        ["list", "-n5x"],
        ["list", "-ln5"],
        ["list", "-ln", "5"],
        ["list", "-ln", "/etc/x"],
        ["list", "-lx"],
        ["list", "--all=yes"],
        ["list", "--depth=33"],
        ["list", "--depth="],
        ["list", "A"],
        ["list", "a b"],
        ["list", "-"],
        ["list", "--", "-l"],
        ["list", "--", "--exec=sh"],
        ["list", "a", "b", "c"],
        ["list", ""],
        ["git"],
        ["git", "push"],
        ["git", "--oneline", "log"],
        ["git", "log", "-c", "core.pager=sh"],
        ["git", "log", "main"],
        ["broken", "a"],
    ],
)
def test_an_argument_that_the_grammar_does_not_name_is_denied(argv: list[str]) -> None:
    error = refusal(argv)
    assert error.kind is ErrorKind.POLICY_DENIED
    assert error.details["command"] == argv[0]


def test_a_denial_names_what_the_command_takes() -> None:
    error = refusal(["list", "-x"])
    assert error.details["allowed_flags"] == {"-l": None, "-a": None, "-n": "[0-9]+", "--depth": "[0-9]", "--all": None}
    assert error.details["argument_pattern"] == "[a-z./]+"
    assert error.details["max_arguments"] == 2
    assert refusal(["git", "push"]).details["allowed_subcommands"] == ["log", "status"]


def test_an_unknown_command_is_answered_with_the_allowed_ones() -> None:
    error = refusal(["rm", "-rf", "/"])
    assert error.kind is ErrorKind.POLICY_DENIED
    assert error.details["allowed_commands"] == ["broken", "git", "list"]
    assert "'list', the name without a folder" in refusal(["/usr/bin/list"]).message
    assert "The policy allows no commands" in refusal(["ls"], ()).message


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [""],
        ["list", "a\nb"],
        ["list", "a\x00"],
        ["list", "a\tb"],
        ["list", "\x9b2J"],
        ["list", chr(0xD800)],
        ["list", "\x7f"],
        ["list", "a" * (MAX_ARGUMENT_CHARS + 1)],
        ["list"] * (MAX_ARGUMENTS + 1),
        ["list"] + ["a" * 4000] * 10,
    ],
)
def test_malformed_arguments_are_invalid_before_any_rule_is_asked(argv: list[str]) -> None:
    assert refusal(argv).kind is ErrorKind.INVALID_INPUT


def test_paths_are_named_for_the_path_guard() -> None:
    assert check_command(["list", "-l", "a", "../b"], RULES).paths == ("a", "../b")
    assert check_command(["git", "log"], RULES).paths == ()


def test_a_hostile_pattern_value_is_checked_in_linear_time() -> None:
    rule = CommandRule(name="x", path="/x", positionals="(a+)+$", end_of_options=False)
    assert refusal(["x", "a" * 4000 + "!"], (rule,)).kind is ErrorKind.POLICY_DENIED


def test_environment_takes_only_names_that_the_rule_leaves_open() -> None:
    checked = check_command(["list"], RULES)
    assert check_environment({}, checked) == {"MODE": "plain"}
    assert check_environment({"TOPIC": "birds"}, checked) == {"MODE": "plain", "TOPIC": "birds"}
    for name in ("MODE", "LD_PRELOAD", "PATH"):
        with pytest.raises(ToolFailure) as caught:
            check_environment({name: "x"}, checked)
        assert caught.value.error.kind is ErrorKind.POLICY_DENIED
        assert caught.value.error.details["settable_variables"] == ["TOPIC"]
    for value in ("a\nb", "a\0b", "a" * 1025):
        with pytest.raises(ToolFailure) as caught:
            check_environment({"TOPIC": value}, checked)
        assert caught.value.error.kind is ErrorKind.INVALID_INPUT


def test_faults_of_a_rule_are_reported_when_a_policy_is_loaded() -> None:
    assert rule_faults(LIST) == []
    bad = CommandRule(name="a/b", path="b", flags=(FlagRule("x"), FlagRule("-y", "[")), positionals="(?=a)")
    assert len(rule_faults(bad)) == 5


def test_argv_and_command_line_are_the_same_to_the_guard() -> None:
    assert argv_of("list -l 'a b'") == argv_of(["list", "-l", "a b"]) == ["list", "-l", "a b"]


def test_safe_commands_are_sound_rules_of_existing_binaries() -> None:
    assert {"echo", "ls", "cat", "head", "true"} <= {rule.name for rule in SAFE_COMMANDS}
    for rule in SAFE_COMMANDS:
        assert rule_faults(rule) == []
        assert os.access(rule.path, os.X_OK)
    assert safe_commands("/nowhere") == ()


@pytest.mark.parametrize(
    "line",
    [
        "date -s 2020-01-01",
        "date -f x",
        "date 010100002020",
        "tail -f x",
        "tail --follow x",
        "ls --color=x",
        "wc --files0-from=x",
        "du --files0-from=x",
        "cut -d",
        "echo -e x",
        "diff -r a b",
        "diff --to-file=x a",
        "uname x",
        "sleep 99999",
        "cat -",
    ],
)
def test_safe_commands_do_not_follow_write_or_set_anything(line: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        check_command(argv_of(line), SAFE_COMMANDS)
    assert caught.value.error.kind is ErrorKind.POLICY_DENIED


ARGUMENT = st.text(alphabet="-lan5=é/. \n\0", max_size=8)


@pytest.mark.promise("exec.grammar")
@given(st.lists(ARGUMENT, max_size=6))
def test_no_argument_list_gets_past_the_grammar(arguments: Any) -> None:
    checked = outcome(check_command, ["list", *arguments], RULES)
    if isinstance(checked, ToolError):
        assert checked.kind in (ErrorKind.POLICY_DENIED, ErrorKind.INVALID_INPUT)
        return
    divider = checked.argv.index("--") if "--" in checked.argv else len(checked.argv)
    assert all(word.startswith("-") or word.isdigit() for word in checked.argv[1:divider])
    assert not any(word.startswith("-") for word in checked.argv[divider + 1 :])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls -l src", ["ls", "-l", "src"]),
        ("  ls \t -l  ", ["ls", "-l"]),
        ("echo 'a  b' \"c d\"e", ["echo", "a  b", "c de"]),
        ("echo ''", ["echo", ""]),
        (r"echo a\ b \$HOME", ["echo", "a b", "$HOME"]),
        (r'echo "a\"b\\c\$d\e"', ["echo", r'a"b\c$d\e']),
        ("echo '$(id) `id` ; | & > *'", ["echo", "$(id) `id` ; | & > *"]),
        ('echo "; | & > * ~ {a,b} #"', ["echo", "; | & > * ~ {a,b} #"]),
        ("echo a~b c#d x=y ! ] }", ["echo", "a~b", "c#d", "x=y", "!", "]", "}"]),
        ("echo größe 日本", ["echo", "größe", "日本"]),
    ],
)
def test_words_are_those_that_a_shell_would_make(text: str, words: list[str]) -> None:
    assert split_command(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "a;b",
        "a|b",
        "a&&b",
        "a&",
        "a<b",
        "a>b",
        "(a)",
        "a $b",
        "a `b`",
        'a "$b"',
        'a "`b`"',
        "ls *.py",
        "ls ?",
        "ls [ab]",
        "ls ~/x",
        "ls {a,b}",
        "ls # x",
        "a $(b)",
        "a || b",
        "a >> b",
        "a 2>&1",
    ],
)
def test_a_command_that_needs_a_shell_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        split_command(text)
    error = caught.value.error
    assert error.kind is ErrorKind.INVALID_INPUT
    assert "No shell is used" in error.message
    assert text[int(str(error.details["position"]))] == error.details["character"]


@pytest.mark.parametrize(
    "text", ["", "  \t", "a 'b", 'a "b', "a \\", "a\nb", "a\0b", "'a\nb'", '"a\rb"', "a\\\nb", "a\x7fb", "a\x85b"]
)
def test_empty_unfinished_and_multi_line_commands_are_refused(text: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        split_command(text)
    assert caught.value.error.kind is ErrorKind.INVALID_INPUT


def test_a_very_long_command_is_refused_unread() -> None:
    with pytest.raises(ToolFailure):
        split_command("a " * MAX_COMMAND_CHARS)
    assert split_command("a" * MAX_COMMAND_CHARS) == ["a" * MAX_COMMAND_CHARS]


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs"))), min_size=1, max_size=8))
def test_quoted_words_survive_the_round_trip(words: list[str]) -> None:
    assert split_command(shlex.join(words)) == words


@given(st.text(alphabet="ab \t'\"\\$;|&<>()`*?[~{#\n\0é=", max_size=40))
def test_an_accepted_command_is_split_as_by_a_posix_shell(text: str) -> None:
    words = outcome(split_command, text)
    if isinstance(words, ToolError):
        assert words.kind is ErrorKind.INVALID_INPUT
    else:
        assert words == shlex.split(text)
