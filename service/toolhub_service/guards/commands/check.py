"""Checks a command: which binary may run, with which flags and which arguments.

A list of allowed names is no boundary: half of the harmless-looking Unix binaries can be made to run another program by
a flag (GTFOBins; `sort --compress-program`, `tar --to-command`, `git -c core.pager`). So every binary has a grammar
(grammar.py). No shell is ever involved: split.py splits a command line without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.verdict import CommandRule, DeniedCommand
from toolhub_service.guards.commands.dangerous import danger_of
from toolhub_service.guards.commands.grammar import CheckedCommand, Grammar, compiles
from toolhub_service.guards.commands.split import is_control, split_command

MAX_ARGUMENTS = 128
MAX_ARGUMENT_CHARS = 4096
MAX_TOTAL_CHARS = 32_768
_MAX_ENVIRONMENT_VALUE_CHARS = 1024


def argv_of(command: str | Sequence[str]) -> list[str]:
    """Return the argument of role COMMAND as words: an array unchanged, a string split without a shell."""
    return split_command(command) if isinstance(command, str) else list(command)


def check_command(
    argv: Sequence[str], rules: tuple[CommandRule, ...], denied: tuple[DeniedCommand, ...] = ()
) -> CheckedCommand:
    """Return the command as it may run. Of two rules with one name the first applies; `denied` overrides all of them.

    Raises:
        ToolFailure: INVALID_INPUT for a malformed argv, POLICY_DENIED for a command that no rule allows; the details
            name the allowed commands, or the flags and arguments that the command takes, or the danger that no rule
            can allow.
    """
    _check_form(argv)
    name = argv[0]
    rule = next((rule for rule in rules if rule.name == name), None)
    if rule is None:
        _unknown_command(name, rules)
    checked = Grammar(rule).check(argv[1:])
    danger = danger_of(checked.argv, denied)
    if danger is not None:
        raise refuse(
            ErrorKind.POLICY_DENIED,
            f"This command is always refused: {danger.why} (rule {danger.rule}). Use the file tools, or ask a "
            "person to do it.",
            danger=danger.rule,
        )
    return checked


def check_environment(requested: Mapping[str, str], checked: CheckedCommand) -> dict[str, str]:
    """Return the environment that the command gets besides the hub's own.

    A name to which the rule gives a value is fixed; a name that it lists with an empty value may be set by the caller.
    Raises ToolFailure POLICY_DENIED for any other name.
    """
    settable = sorted(name for name, value in checked.environment.items() if not value)
    for name, value in requested.items():
        if name not in settable:
            raise refuse(
                ErrorKind.POLICY_DENIED,
                f"The environment variable {name[:64]!r} may not be set for {checked.rule}: leave it out.",
                settable_variables=list(settable),
            )
        if len(value) > _MAX_ENVIRONMENT_VALUE_CHARS or not _is_clean(value):
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"The value of {name} must be one line of at most {_MAX_ENVIRONMENT_VALUE_CHARS} characters.",
            )
    merged = {**checked.environment, **requested}
    return {name: value for name, value in merged.items() if value}


def rule_faults(rule: CommandRule) -> list[str]:
    """Return what is wrong with a rule, one sentence each; for the loader of a policy."""
    faults: list[str] = []
    if not rule.name or "/" in rule.name:
        faults.append(f"commands: {rule.name!r} must be a bare name, not a path")
    if not rule.path.startswith("/"):
        faults.append(f"commands.{rule.name}: path {rule.path!r} must be absolute")
    faults += [
        f"commands.{rule.name}: {flag.flag!r} does not start with '-'" for flag in rule.flags if flag.flag[:1] != "-"
    ]
    patterns = [rule.positionals, *(flag.value for flag in rule.flags)]
    faults += [
        f"commands.{rule.name}: {p!r} is not an RE2 pattern" for p in patterns if p is not None and not compiles(p)
    ]
    return faults


def _check_form(argv: Sequence[str]) -> None:
    if not argv or not argv[0]:
        raise refuse(ErrorKind.INVALID_INPUT, "The command is empty: give the name of a command and its arguments.")
    if len(argv) > MAX_ARGUMENTS:
        raise refuse(ErrorKind.INVALID_INPUT, f"{len(argv)} arguments are too many: at most {MAX_ARGUMENTS}.")
    if max(map(len, argv)) > MAX_ARGUMENT_CHARS or sum(map(len, argv)) > MAX_TOTAL_CHARS:
        raise refuse(
            ErrorKind.INVALID_INPUT,
            f"The arguments are too long: at most {MAX_ARGUMENT_CHARS} characters each and {MAX_TOTAL_CHARS} together. "
            "Put long content in a file of the workspace.",
        )
    for index, argument in enumerate(argv):
        if not _is_clean(argument):
            raise refuse(
                ErrorKind.INVALID_INPUT,
                f"Argument {index} has a line break, a tab, a NUL or another control character: leave it out, "
                "or put the text in a file of the workspace.",
                argument=index,
            )


def _unknown_command(name: str, rules: tuple[CommandRule, ...]) -> NoReturn:
    allowed = sorted({rule.name for rule in rules})
    bare = name.rsplit("/", 1)[-1]
    if "/" in name and bare in allowed:
        advice = f"Write {bare!r}, the name without a folder."
    elif allowed:
        advice = "Use one of allowed_commands, or a file tool such as core/fs.listDir."
    else:
        advice = "The policy allows no commands. Use the file tools, or ask an operator to allow one."
    raise refuse(
        ErrorKind.POLICY_DENIED, f"{name[:64]!r} is not an allowed command. {advice}", allowed_commands=list(allowed)
    )


def _is_clean(text: str) -> bool:
    """Return whether no character is a control character or a lone surrogate. `isprintable` decides the usual case in
    C."""
    return text.isprintable() or not any(char == "\t" or is_control(char) for char in text)
