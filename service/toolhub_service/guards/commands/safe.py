"""Commands that only read or compute, as rules that a policy may enable.

Each grammar names only flags that neither run a program nor write a file. `sort`, `grep`, `find`, `env` and similar
commands are left out although their flags could be restricted: file tools do their work. Binaries are looked up once,
in fixed system folders and never on the caller's or the hub's PATH.
"""

from __future__ import annotations

import shutil

import msgspec

from toolhub_service.domain.verdict import CommandRule, FlagRule

SYSTEM_FOLDERS = "/usr/bin:/bin"

_NUMBER = r"[0-9]{1,9}"
_SIGNED = r"[+-]?[0-9]{1,9}[KMG]?"
_LIST = r"[0-9,\-]{1,200}"
_DELIMITER = r"."
_TEXT = r"(?s).*"
_PATH = r"(?s).+"


def _rule(
    name: str,
    switches: str = "",
    *,
    values: dict[str, str] | None = None,
    positionals: str | None = None,
    paths: bool = False,
    most: int = 16,
    end_of_options: bool = True,
) -> CommandRule:
    flags = [FlagRule(flag) for flag in switches.split()]
    flags += [FlagRule(flag, pattern) for flag, pattern in (values or {}).items()]
    return CommandRule(
        name=name,
        path="",
        flags=tuple(flags),
        positionals=_PATH if paths else positionals,
        positionals_are_paths=paths,
        positionals_max=most,
        end_of_options=end_of_options,
    )


_GRAMMARS = (
    _rule("echo", "-n", positionals=_TEXT, most=128, end_of_options=False),
    _rule("pwd", "-L -P"),
    _rule("true"),
    _rule("false"),
    _rule("sleep", positionals=r"[0-9]{1,4}(\.[0-9]{1,3})?s?", most=1),
    _rule(
        "ls",
        "-l -a -A -1 -h -R -t -S -r -d -F -i -s --all --almost-all --human-readable --recursive --reverse",
        paths=True,
    ),
    _rule("cat", "-n -b -s -A -E -T -v --number", paths=True),
    _rule("wc", "-l -w -c -m -L --lines --words --bytes --chars", paths=True),
    _rule("head", "-q -v", values=dict.fromkeys(("-n", "-c", "--lines", "--bytes"), _SIGNED), paths=True),
    _rule("tail", "-q -v", values=dict.fromkeys(("-n", "-c", "--lines", "--bytes"), _SIGNED), paths=True),
    _rule("nl", values={"-b": "[atn]", "-w": _NUMBER, "-v": _NUMBER}, paths=True),
    _rule("cut", "-s", values={"-d": _DELIMITER, "-f": _LIST, "-c": _LIST, "-b": _LIST}, paths=True),
    _rule("stat", "-t -L", paths=True),
    _rule("du", "-s -h -a -b -k -m", values={"-d": _NUMBER, "--max-depth": _NUMBER}, paths=True),
    _rule("sha256sum", "--tag", paths=True),
    _rule("cmp", "-s -l -b", paths=True, most=2),
    _rule("diff", "-u -q -w -b -B -i -y", values={"-U": _NUMBER}, paths=True, most=2),
    _rule("basename", positionals=_TEXT, most=2),
    _rule("dirname", positionals=_TEXT, most=1),
    _rule("seq", "-w", positionals=r"[0-9]{1,6}", most=3),
    _rule(
        "date",
        "-u --utc -R -I",
        values={"--iso-8601": "date|hours|minutes|seconds|ns"},
        positionals=r"\+[ -~]*",
        most=1,
    ),
    _rule("uname", "-a -s -n -r -v -m -p -i -o"),
)


def safe_commands(folders: str = SYSTEM_FOLDERS) -> tuple[CommandRule, ...]:
    """Return the rules whose binary exists in one of the folders (`:`-separated, absolute)."""
    found = ((grammar, shutil.which(grammar.name, path=folders)) for grammar in _GRAMMARS)
    return tuple(msgspec.structs.replace(grammar, path=path) for grammar, path in found if path is not None)


SAFE_COMMANDS = safe_commands()
