"""Commands that no rule of a policy can allow: they destroy a machine, stop it, or give others control of it.

A grammar (grammar.py) says what a binary may be given; an operator who writes one too wide, for a shell, `find`
or `git`, must not thereby have allowed `rm -rf /`. So every command that a grammar accepts is compared with this list
as well, with the programs that merely start others (`sudo`, `env`, `timeout`, `busybox` …) removed, and with the code
in an argument of a shell or an interpreter read as commands of its own. The list is a second line of defence: a program
can always be made to do harm in words that no list knows, so the grammar alone says what may run at all. Sources:
GTFOBins, and the dangerous patterns that agent frameworks ship (`rm -rf /`, `mkfs`, `dd`, fork bombs …).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import re2

from toolhub_service.domain.verdict import DeniedCommand
from toolhub_service.guards.commands.grammar import compile_pattern

Words = Sequence[str]

_SHELLS: Final = frozenset("sh bash dash zsh ksh mksh ash fish csh tcsh rbash elvish nu pwsh".split())
_INTERPRETERS: Final = frozenset(
    "python pypy perl ruby node nodejs deno bun php lua luajit tclsh expect awk gawk".split()
)
# Programs whose arguments contain another command.
_STARTERS: Final = frozenset(
    {
        *"sudo doas su env nice nohup timeout setsid stdbuf time ionice chrt taskset unshare nsenter chroot".split(),
        *"busybox toybox command exec builtin xargs parallel watch script strace ltrace flock systemd-run".split(),
        *"runuser setpriv capsh eval".split(),
    }
)
# Programs that take a command as text in one argument.
_SCRIPTED: Final = _SHELLS | _INTERPRETERS | _STARTERS | frozenset({"git", "find", "ssh", "make", "tar", "vim", "ex"})
_DESTROYERS: Final = frozenset(
    {"rm", "unlink", "rmdir", "shred", "srm", "wipe", "find", "chmod", "chown", "chgrp", "mv"}
)
_FORMATTERS: Final = frozenset(
    "mkfs mke2fs mkswap wipefs fdisk sfdisk cfdisk gdisk sgdisk parted blkdiscard hdparm cryptsetup".split()
)
_STOPPERS: Final = frozenset("shutdown reboot halt poweroff telinit killall5 kexec pm-suspend".split())
_SYSTEMCTL_STOPS: Final = frozenset("poweroff reboot halt kexec suspend hibernate rescue emergency isolate".split())
_KERNEL: Final = frozenset("insmod rmmod modprobe".split())

# A whole file system, a home directory, or a folder that the system needs.
_EVERYTHING: Final = re.compile(
    r"(?:/+(?:\.{1,2}/*)*\*?|(?:\.\./+)*\.\./*|~[\w-]*/*\*?|\$\{?HOME\}?/*\*?|/+(?:bin|boot|dev|etc|home|lib|lib64|opt|proc|root|sbin|srv|sys"
    r"|usr|var)(?:/+\.?)*\*?)"
)
_DEVICE: Final = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|mapper/|disk/|mem\b|kmem\b|port\b)")
_KEPT_SECRET: Final = re.compile(
    r"(?:^|[/~=:@])(?:\.ssh/(?:id_\w+|authorized_keys)|\.aws/credentials|\.netrc|\.git-credentials|\.kube/config|\.pgpass"
    r"|\.docker/config\.json|\.(?:bash|zsh|sh|python|psql|mysql)_history)$|^/+etc/+g?shadow-?$|^/+etc/+sudoers\b"
    r"|^/+proc/+[^/]+/+(?:environ|mem|maps)$"
)

_INTO_A_SHELL: Final = r"\|\s*(?:(?:sudo|env)\s+)*(?:/\S*/)?(?:\w*sh|python[\d.]*|perl|ruby|node)\b"
_TEXT_RULES: Final = tuple(
    (rule, re2.compile(pattern))
    for rule, pattern in (
        ("fork-bomb", r"(?:^|[\s;])([\w:.]+)\s*\(\)\s*\{[^}]*\|[^}]*&[^}]*\}"),
        ("download-and-run", rf"\b(?:curl|wget|fetch)\b[^|;]*{_INTO_A_SHELL}"),
        ("download-and-run", r"(?:<\(|\$\(|`)\s*(?:curl|wget|fetch)\b"),
        ("decode-and-run", rf"\bbase(?:64|32)\b[^|;]*\s-(?:d|D|-decode)\b[^|;]*{_INTO_A_SHELL}"),
        ("reverse-shell", r"/dev/(?:tcp|udp)/"),
        ("write-device", r">\s*/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|mem\b|kmem\b)"),
    )
)
_SEPARATORS: Final = re.compile(r"[;&|\n(){}`]+|\$\(|[<>]\(")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_VERSION: Final = re.compile(r"(?:[\d.]+|\.exe)$")
# Stands for the program where the next word is a complete text to be run.
_TEXT: Final = ""
# Most commands checked within one call; the length of an argument bounds what each costs.
_SCRIPTS_MAX: Final = 64


class Danger(NamedTuple):
    rule: str
    """Name of the rule, such as `delete-everything`."""
    why: str
    """Clause that follows a colon: what the command would do."""


_WOULD: Final = {
    "delete-everything": "delete, move or open a whole file system, a home or a system folder",
    "format-disk": "format or repartition a disk",
    "write-device": "write to a disk or to the machine's memory",
    "fork-bomb": "start processes without end",
    "stop-machine": "stop the machine or all of its processes",
    "change-kernel": "change the running kernel",
    "read-credentials": "read credentials, password hashes or a shell's history",
    "download-and-run": "run what it has just downloaded",
    "decode-and-run": "run what it has just decoded",
    "reverse-shell": "give a shell to another machine",
}


def danger_of(argv: Words, denied: Sequence[DeniedCommand] = ()) -> Danger | None:
    """Return why a command is never run, whatever a grammar allows; None when no rule matches. Linear in its length.

    `denied` are an operator's own patterns, which extend the built-in list.
    """
    for words in _commands(argv):
        if rule := next((rule for rule, applies in _RULES if applies(words)), ""):
            return Danger(rule, f"it would {_WOULD[rule]}")
        for own in denied:
            if compile_pattern(own.pattern).search(" ".join(words)) is not None:
                return Danger(own.id, "the policy denies it in `denied_commands`")
    return None


def program_of(word: str) -> str:
    """Return the program that a word names, without folder and version: `/usr/bin/python3.11` is `python`."""
    return _VERSION.sub("", word.rsplit("/", 1)[-1]).lower() or word


def runs_others(word: str) -> bool:
    """Return whether a program can run any other one: a refusal then does not say how to allow it."""
    return program_of(word) in _SCRIPTED


def _commands(argv: Words) -> Iterator[Words]:
    """Yield the command itself and those that it starts; a text that a shell or an interpreter runs, whole and as
    words."""
    waiting: list[Words] = [argv]
    for _ in range(_SCRIPTS_MAX):
        if not waiting:
            return
        words = _without_assignments(waiting.pop())
        if not words:
            continue
        yield words
        program = program_of(words[0])
        if program in _STARTERS:
            waiting += [words[at:] for at in range(1, min(len(words), 8))]
        if program in _SCRIPTED:
            waiting += [part for word in words[1:] for part in _script(word)]
            waiting += [words[at + 1 :] for at, word in enumerate(words) if word in ("-exec", "-execdir", "-ok")]


def _script(text: str) -> Iterator[Words]:
    if " " not in text and _SEPARATORS.search(text) is None:
        return
    yield (_TEXT, text)
    for command in _SEPARATORS.split(text):
        yield tuple(word.strip("\"'\\") for word in command.split())


def _without_assignments(words: Words) -> Words:
    at = 0
    while at < len(words) and _ASSIGNMENT.match(words[at]):
        at += 1
    return words[at:]


def _deletes_everything(words: Words) -> bool:
    program, rest = program_of(words[0]), words[1:]
    if program not in _DESTROYERS:
        return False
    if "--no-preserve-root" in rest:
        return True
    if program == "find":
        acts = any(word in ("-delete", "-exec", "-execdir", "-ok") for word in rest)
        return acts and any(_EVERYTHING.fullmatch(word) for word in rest)
    reaches = program in ("mv", "shred", "wipe", "srm") or any(
        word in ("--recursive", "-R") or (word[:1] == "-" and word[:2] != "--" and "r" in word.lower()) for word in rest
    )
    return reaches and any(_EVERYTHING.fullmatch(word) for word in rest)


def _formats(words: Words) -> bool:
    program = program_of(words[0])
    return program in _FORMATTERS or program.startswith("mkfs.")


def _writes_device(words: Words) -> bool:
    program, rest = program_of(words[0]), words[1:]
    if program == "dd":
        return any(word.startswith("of=") and _DEVICE.match(word[3:]) for word in rest)
    return program in ("cp", "tee", "mv", "install", "truncate", "cat") and any(map(_DEVICE.match, rest))


def _stops_machine(words: Words) -> bool:
    program, rest = program_of(words[0]), words[1:]
    if program in _STOPPERS or (program == "init" and rest[:1] in (["0"], ["6"], ("0",), ("6",))):
        return True
    if program == "systemctl":
        return any(word in _SYSTEMCTL_STOPS for word in rest)
    return program == "kill" and any(word in ("-1", "1") for word in rest[1:] or rest)


def _gives_shell(words: Words) -> bool:
    takes = ("--exec", "--sh-exec", "--lua-exec")
    return program_of(words[0]) in ("nc", "ncat", "netcat") and any(
        word in takes or (word[:1] == "-" and word[:2] != "--" and "e" in word) for word in words[1:]
    )


def _text_matches(rule: str) -> Callable[[Words], bool]:
    """Return whether a text to be run by a shell or an interpreter matches one of the rule's patterns."""
    patterns = [pattern for name, pattern in _TEXT_RULES if name == rule]
    return lambda words: words[0] == _TEXT and any(pattern.search(" ".join(words)) is not None for pattern in patterns)


_RULES: Final[tuple[tuple[str, Callable[[Words], bool]], ...]] = (
    ("delete-everything", _deletes_everything),
    ("format-disk", _formats),
    ("write-device", _writes_device),
    ("stop-machine", _stops_machine),
    ("change-kernel", lambda words: program_of(words[0]) in _KERNEL),
    ("read-credentials", lambda words: any(_KEPT_SECRET.search(word) for word in words[1:])),
    ("reverse-shell", _gives_shell),
    *((rule, _text_matches(rule)) for rule in dict.fromkeys(rule for rule, _ in _TEXT_RULES)),
)
