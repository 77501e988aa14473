"""A first `toolhub.json` for a skill, from the arguments that one of its scripts declares. Nothing is executed.

The hub gives arguments as JSON on standard input and takes JSON from standard output; most scripts take a command line.
So a small script beside the sidecar converts between the two. Arguments of argparse are read from the script's syntax
tree; those that only a run would reveal are left to the person who edits the draft.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolhub_service.adapters.skill.manifest import MANIFEST_NAME, PYTHON
from toolhub_service.adapters.skill.skill import Skill

WRAPPER: Final = "toolhub_entry.py"
SCRIPT_MAX_BYTES: Final = 512 * 1024
_SUFFIXES: Final = (".py", ".sh")
_TYPES: Final = {"int": "integer", "float": "number", "str": "string", "Path": "string"}
_SWITCHES: Final = frozenset({"store_true", "store_false"})
_REPEATED: Final = frozenset({"*", "+"})

_WRAPPER_TEXT: Final = """# Arguments as JSON on standard input, for a script that takes a command line.
# Written by `toolhub skills init`.

import json
import subprocess
import sys

SCRIPT = {script}
PROGRAM = {program}
ARGUMENTS = {arguments}  # name of the argument, its flag (empty: by position), whether it is a switch

given = json.load(sys.stdin)
words = []
for name, flag, is_switch in ARGUMENTS:
    value = given.get(name)
    if value is None or value is False:
        continue
    values = value if isinstance(value, list) else [value]
    words += [flag] if is_switch else [*([flag] if flag else []), *map(str, values)]
ran = subprocess.run([*PROGRAM, SCRIPT, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
sys.stderr.write(ran.stderr)
if ran.returncode:
    sys.exit(ran.returncode)
json.dump({{"stdout": ran.stdout}}, sys.stdout)
"""


class NothingToDraft(ValueError):
    """The skill has no script that could be an entry; the message says what was searched for."""


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    flag: str = ""
    """Empty: positional."""
    schema: dict[str, Any] = field(default_factory=dict)
    is_required: bool = False
    is_switch: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    files: dict[str, str]
    """Content by path in the skill."""
    script: str
    arguments: tuple[Argument, ...]
    others: tuple[str, ...]
    """Other scripts that could be the entry."""


def scripts_of(skill: Skill) -> list[str]:
    """Return the scripts, those below `scripts/` first; none of a package, which is imported and not started."""
    found = [
        file.path
        for file in skill.files
        if file.path.endswith(_SUFFIXES)
        and not file.link
        and file.path.rpartition("/")[2] not in ("__init__.py", WRAPPER)
    ]
    # The Agent Skills format puts scripts into `scripts/`; elsewhere the outermost is the likeliest entry.
    return sorted(found, key=lambda path: (not path.startswith("scripts/"), path.count("/"), path))


def draft(skill: Skill, script: str = "") -> Draft:
    """Return a draft. `script`: path of the entry; empty: the first script with arguments, else the first. Raises
    NothingToDraft, OSError."""
    scripts = scripts_of(skill)
    if not scripts:
        raise NothingToDraft("it has no script: a file that ends in .py or .sh")
    if script and script not in scripts:
        raise NothingToDraft(f"it has no script {script}; there are {', '.join(scripts)}")
    arguments = {path: tuple(_arguments(skill.folder / path)) for path in ([script] if script else scripts)}
    chosen = script or next((path for path in scripts if arguments[path]), scripts[0])
    taken = arguments[chosen]
    program = ["/bin/sh"] if chosen.endswith(".sh") else []
    wrapper = _WRAPPER_TEXT.format(
        script=repr(chosen),
        program=repr(program) if program else "[sys.executable]",
        arguments=repr([(each.name, each.flag, each.is_switch) for each in taken]),
    )
    files = {MANIFEST_NAME: json.dumps(_manifest(taken), indent=2, ensure_ascii=False) + "\n", WRAPPER: wrapper}
    return Draft(files, chosen, taken, tuple(path for path in scripts if path != chosen))


def _manifest(arguments: Sequence[Argument]) -> dict[str, Any]:
    return {
        "version": "0.1.0",
        "mode": "script",
        "input_schema": {
            "type": "object",
            "additionalProperties": False,
            "properties": {each.name: each.schema for each in arguments},
            "required": [each.name for each in arguments if each.is_required],
        },
        "output_schema": {
            "type": "object",
            "required": ["stdout"],
            "properties": {"stdout": {"type": "string", "description": "What the script printed."}},
        },
        "entry": {"argv": [PYTHON, WRAPPER]},
        "limits": {"timeout_s": 60},
    }


def _arguments(script: Path) -> Iterator[Argument]:
    """Yield the arguments of `add_argument` calls in a Python script; none if it does not parse."""
    if script.suffix != ".py" or script.stat().st_size > SCRIPT_MAX_BYTES:
        return
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    seen: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            found = _argument(node)
            if found is not None and found.name not in seen:
                seen.add(found.name)
                yield found


def _argument(call: ast.Call) -> Argument | None:
    names = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if not names or _constant(keywords.get("action")) in ("version", "help"):
        return None
    # The long form, from which argparse derives the argument's name.
    flag = max(names, key=len) if names[0].startswith("-") else ""
    name = str(_constant(keywords.get("dest")) or (flag or names[0]).lstrip("-").replace("-", "_"))
    if not name.isidentifier():
        return None
    is_switch = _constant(keywords.get("action")) in _SWITCHES
    required = bool(_constant(keywords.get("required"))) if flag else _constant(keywords.get("nargs")) not in ("?", "*")
    return Argument(name, flag, _schema(keywords, is_switch=is_switch), required, is_switch)


def _schema(keywords: dict[str, ast.expr], *, is_switch: bool) -> dict[str, Any]:
    kind = keywords.get("type")
    named = kind.id if isinstance(kind, ast.Name) else kind.attr if isinstance(kind, ast.Attribute) else "str"
    schema: dict[str, Any] = {"type": "boolean" if is_switch else _TYPES.get(named, "string")}
    choices = keywords.get("choices")
    if isinstance(choices, ast.List | ast.Tuple):
        values = [_constant(each) for each in choices.elts]
        schema |= {"enum": values} if None not in values else {}
    if _constant(keywords.get("nargs")) in _REPEATED:
        schema = {"type": "array", "items": schema}
    help_text = _constant(keywords.get("help"))
    if isinstance(help_text, str) and help_text.strip():
        schema["description"] = " ".join(help_text.split())
    default = _constant(keywords.get("default"))
    if default is not None and not is_switch:
        schema["default"] = default
    return schema


def _constant(node: ast.expr | None) -> Any:
    """Return the value of a literal that JSON can hold; None for any other expression."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str | int | float | bool) else None
