"""The grammar of one command: which flags, values and positionals a rule allows.

Anything that a rule does not name is refused, and so is a positional that starts with `-` (argument injection, CWE-88).
Patterns are RE2 and match whole values in linear time. Options keep their order and come first, then `--`, then
positionals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NoReturn

import msgspec
import re2

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.verdict import CommandRule, FlagRule


class CheckedCommand(msgspec.Struct, frozen=True):
    """An allowed command, exactly as it will run."""

    rule: str
    """Name of the rule that allowed it."""
    argv: tuple[str, ...]
    """argv[0] is the absolute path of the binary."""
    environment: Mapping[str, str]
    """Variables that the rule adds to the empty environment."""
    paths: tuple[str, ...] = ()
    """Positionals that are workspace paths, for the path guard; relative to the working directory."""

    @property
    def binary(self) -> str:
        return self.argv[0]


class Grammar:
    """One rule applied to one argument list."""

    def __init__(self, rule: CommandRule) -> None:
        self._rule = rule
        self._flags = {flag.flag: flag for flag in rule.flags}

    def check(self, arguments: Sequence[str]) -> CheckedCommand:
        subcommand, rest = self._subcommand(arguments)
        options, positionals = self._parse(rest)
        for positional in positionals:
            self._check_positional(positional)
        if len(positionals) > self._rule.positionals_max:
            self._deny(f"takes at most {self._rule.positionals_max} arguments, not {len(positionals)}")
        divider = ("--",) if self._rule.end_of_options and positionals else ()
        return CheckedCommand(
            rule=self._rule.name,
            argv=(self._rule.path, *subcommand, *options, *divider, *positionals),
            environment=self._rule.environment,
            paths=tuple(positionals) if self._rule.positionals_are_paths else (),
        )

    def _subcommand(self, arguments: Sequence[str]) -> tuple[tuple[str, ...], Sequence[str]]:
        if not self._rule.subcommands:
            return (), arguments
        if not arguments or arguments[0] not in self._rule.subcommands:
            self._deny("needs one of its allowed subcommands as its first argument")
        return (arguments[0],), arguments[1:]

    def _parse(self, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the options as they will be passed, and the positionals. `--` ends the options; a lone `-` is a
        positional."""
        options: list[str] = []
        positionals: list[str] = []
        at = 0
        while at < len(arguments):
            argument = arguments[at]
            if argument == "--":
                return options, [*positionals, *arguments[at + 1 :]]
            if not argument.startswith("-") or argument == "-":
                positionals.append(argument)
                at += 1
                continue
            taken = self._option(arguments, at)
            options += taken
            at += len(taken)
        return options, positionals

    def _option(self, arguments: Sequence[str], at: int) -> Sequence[str]:
        """Return the option at `at`, with its value when that is the next argument."""
        argument = arguments[at]
        exact = self._flags.get(argument)
        if exact is not None:
            return (argument,) if exact.value is None else (argument, self._next_value(exact, arguments, at))
        attached = self._split_attached_value(argument)
        if attached is not None:
            flag, value = attached
            self._check_value(flag, value)
            return (argument,)
        if not self._is_bundle(argument):
            self._deny(f"does not take the flag {argument[:64]!r}")
        return (argument,)

    def _split_attached_value(self, argument: str) -> tuple[FlagRule, str] | None:
        """Return `--flag=value` or `-n5` as flag and value; None when it is neither."""
        name, equals, value = argument.partition("=")
        flag = self._flags.get(name) if equals and len(name) > 2 else None
        if flag is None and not argument.startswith("--"):
            flag, value = self._flags.get(argument[:2]), argument[2:]
        if flag is None or flag.value is None:
            return None
        return flag, value

    def _next_value(self, flag: FlagRule, arguments: Sequence[str], at: int) -> str:
        if at + 1 >= len(arguments):
            self._deny(f"needs a value after {flag.flag}")
        value = arguments[at + 1]
        # A binary whose flag takes an optional value would read the next word as another flag.
        if value.startswith("-"):
            self._deny(f"was given {value[:64]!r} as the value of {flag.flag}: a value may not start with '-' there")
        self._check_value(flag, value)
        return value

    def _is_bundle(self, argument: str) -> bool:
        """Return whether it is like `-la`, where each letter is a flag without a value."""
        if argument.startswith("--"):
            return False
        flags = [self._flags.get(f"-{letter}") for letter in argument[1:]]
        return all(flag is not None and flag.value is None for flag in flags)

    def _check_value(self, flag: FlagRule, value: str) -> None:
        if flag.value is None or not self._matches(flag.value, value):
            self._deny(f"does not take {value[:64]!r} as the value of {flag.flag}")

    def _check_positional(self, positional: str) -> None:
        if self._rule.positionals is None:
            self._deny(f"takes no argument such as {positional[:64]!r}")
        if positional.startswith("-"):
            self._deny(
                f"does not take {positional[:64]!r}: an argument may not start with '-' (for a file write ./-name)"
            )
        if not self._matches(self._rule.positionals, positional):
            self._deny(f"does not take the argument {positional[:64]!r}")

    def _matches(self, pattern: str, value: str) -> bool:
        if not compiles(pattern):
            self._deny("has a broken rule in the policy, so it cannot be allowed; tell the operator")
        return compile_pattern(pattern).fullmatch(value) is not None

    def _deny(self, why: str) -> NoReturn:
        rule = self._rule
        raise refuse(
            ErrorKind.POLICY_DENIED,
            f"{rule.name} {why}. See allowed_flags and argument_pattern for what it takes.",
            command=rule.name,
            allowed_flags={flag.flag: flag.value for flag in rule.flags},
            allowed_subcommands=list(rule.subcommands),
            argument_pattern=rule.positionals,
            max_arguments=rule.positionals_max if rule.positionals is not None else 0,
        )


@lru_cache(maxsize=2048)
def compile_pattern(text: str) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(text, options)


@lru_cache(maxsize=2048)
def compiles(text: str) -> bool:
    try:
        compile_pattern(text)
    except re2.error:
        return False
    return True
