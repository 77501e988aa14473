"""`toolhub.json`, the sidecar beside a SKILL.md that makes a skill a tool: schemas, how it is run, what it may use.

This module holds values only and neither reads files nor runs anything. A complete example, for a script:

    {
      "version": "1.0.0",
      "mode": "script",
      "input_schema": {"type": "object", "additionalProperties": false, "properties": {"text": {"type": "string"}}},
      "output_schema": {"type": "object", "required": ["words"], "properties": {"words": {"type": "integer"}}},
      "entry": {"argv": ["{python}", "scripts/count.py"]},
      "artifacts": [{"name": "*.csv", "media_type": "text/csv", "required": true}],
      "annotations": {"read_only": true}
    }

Keys are parsed strictly: an unknown one is refused, and the nearest known key is suggested.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from toolhub_service.domain.errors.failure import ToolFailure
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.guards.secret_names import is_secret_name
from toolhub_service.schema.compiled import compile_schema
from toolhub_service.schema.references import SchemaRefused
from toolhub_service.schema.strict_json import loads

MANIFEST_NAME: Final = "toolhub.json"
MANIFEST_MAX_BYTES: Final = 512 * 1024
PYTHON: Final = "{python}"
SHELL: Final = "{sh}"
"""Words of `entry.argv` that the hub replaces by a program; all other words are literal."""
ARTIFACT_FORMAT: Final = "hub-artifact"
"""`format` of an argument that is an artifact's id, which a script gets as a file."""

STEP_ID: Final = r"^[a-z][a-z0-9_]{0,47}$"
_POINTER: Final = r"^(/([^~/]|~[01])*)+$"
_TOOL: Final = r"^[A-Za-z0-9_*?\[\]!.-]+(/[A-Za-z0-9_*?\[\]!.-]+)?$"
_FIXED_ENVIRONMENT: Final = frozenset(
    ("PATH", "HOME", "TMPDIR", "TMP", "TEMP", "IFS", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS", "GCONV_PATH", "PS4")
)
_FIXED_PREFIXES: Final = ("LD_", "TOOLHUB_", "PYTHON", "BASH_FUNC_", "GLIBC_", "MALLOC_", "NODE_")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")


class ManifestInvalid(ValueError):
    """A sidecar cannot be used; `problems` says where, what, and what is expected, a sentence or two each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Part of a sidecar; unknown keys are refused."""


Glob = Annotated[str, Meta(pattern=_TOOL, max_length=128)]
Name = Annotated[str, Meta(pattern=STEP_ID)]
Pointer = Annotated[str, Meta(pattern=_POINTER, max_length=512)]


class Entry(Section, frozen=True):
    """What mode `script` starts, in the skill's folder: arguments come as JSON on standard input, the result is JSON on
    standard output, files left in `$TOOLHUB_OUTPUT` become artifacts."""

    argv: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
        Meta(
            description=f"Program and arguments, fixed words. The first is `{PYTHON}` (the interpreter for skills), "
            f"`{SHELL}`, or a program of the skill by its path in the skill.",
            min_length=1,
            max_length=64,
        ),
    ]
    env: Annotated[
        dict[
            Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")],
            Annotated[str, Meta(max_length=4096)],
        ],
        Meta(
            description="Environment variables with fixed values; no secrets, they would stand in the file.",
            max_length=32,
        ),
    ] = msgspec.field(default_factory=dict)


class Limits(Section, frozen=True):
    """What one run may use. The caller's deadline and budget, the policy and the settings narrow it."""

    timeout_s: Annotated[float, Meta(description="From start to end.", gt=0, le=3600)] = 60.0
    cpu_s: Annotated[int, Meta(description="CPU time of each process.", ge=1, le=3600)] = 60
    memory_bytes: Annotated[
        int, Meta(description="Address space of each process.", ge=64 * 1024 * 1024, le=16 * 1024**3)
    ] = 1024 * 1024 * 1024
    processes: Annotated[int, Meta(description="Processes and threads at once.", ge=1, le=512)] = 32
    file_bytes: Annotated[int, Meta(description="Size of each file that it writes.", ge=4096, le=4 * 1024**3)] = (
        256 * 1024 * 1024
    )
    stdout_bytes: Annotated[int, Meta(description="Length of the result's JSON text.", ge=2, le=16 * 1024 * 1024)] = (
        1024 * 1024
    )
    stderr_bytes: Annotated[
        int, Meta(description="Of standard error: what is handed on while it runs.", ge=0, le=16 * 1024 * 1024)
    ] = 1024 * 1024
    artifacts: Annotated[int, Meta(description="Files that may become artifacts.", ge=0, le=256)] = 16
    artifact_bytes: Annotated[int, Meta(description="Of all of them together.", ge=0, le=4 * 1024**3)] = (
        256 * 1024 * 1024
    )
    calls: Annotated[int, Meta(description="Calls of tools that one run may make.", ge=0, le=1000)] = 100
    parallel_calls: Annotated[int, Meta(description="Of them at once.", ge=1, le=16)] = 4


class Behaviour(Section, frozen=True):
    """What calls do to the world. Nothing said means the risk that is greatest."""

    read_only: Annotated[bool, Meta(description="Calls change nothing, neither here nor elsewhere.")] = False
    destructive: Annotated[bool, Meta(description="Calls may destroy what cannot be made again.")] = False
    idempotent: Annotated[bool, Meta(description="Calling twice has the same effect as calling once.")] = False
    open_world: Annotated[bool, Meta(description="Calls reach beyond the hub and its folders.")] = False


class DeclaredArtifact(Section, frozen=True):
    """A file that a run leaves in its output folder."""

    name: Annotated[
        str, Meta(description="Glob over the file's path in the output folder.", min_length=1, max_length=256)
    ]
    media_type: Annotated[
        str, Meta(description="Media type that it is kept under.", pattern=r"^[a-z0-9.+-]+/[a-z0-9.+-]+$")
    ] = "application/octet-stream"
    required: Annotated[bool, Meta(description="Whether a run that leaves none has failed.")] = False


class Compensation(Section, frozen=True):
    """A call that undoes a step that has succeeded."""

    tool: Annotated[str, Meta(description="Full name of the tool.", min_length=3, max_length=128)]
    args: Annotated[dict[str, Any], Meta(description="Arguments; may refer to what the step itself gave.")] = (
        msgspec.field(default_factory=dict)
    )


class PointerTest(Section, frozen=True):
    """A condition without an expression."""

    value: Annotated[Pointer, Meta(description="JSON Pointer to what is tested, such as `/input/mode`.")]
    equals: Annotated[Any, Meta(description="Holds when the value is this one.")] = msgspec.UNSET
    exists: Annotated[bool, Meta(description="Holds when there is, or is not, such a value.")] = True


class Step(Section, frozen=True, rename={"condition": "if"}):
    """One call of a plan. `{"$from": "/steps/ID/result/…"}` in its arguments is what an earlier step gave,
    `{"$from": "/input/…"}` an argument of the skill; `"default"` beside it stands in for what is not there."""

    id: Annotated[Name, Meta(description="Unique in the plan.")]
    tool: Annotated[str, Meta(description="Full name of the tool.", min_length=3, max_length=128)]
    args: Annotated[dict[str, Any], Meta(description="Arguments, with references in them.")] = msgspec.field(
        default_factory=dict
    )
    needs: Annotated[
        tuple[Name, ...],
        Meta(description="Earlier steps that must have succeeded first; those it refers to without a default count."),
    ] = ()
    after: Annotated[
        tuple[Name, ...], Meta(description="Earlier steps that must be over first, however they ended.")
    ] = ()
    condition: Annotated[
        str | PointerTest | None,
        Meta(description="CEL over `input` and `steps`, or a test of a JSON Pointer; false: the step is skipped."),
    ] = None
    for_each: Annotated[
        Pointer | None,
        Meta(description="JSON Pointer to an array: one call an item; arguments name it `/item`, its place `/index`."),
    ] = None
    max_items: Annotated[
        int, Meta(description="Items that `for_each` takes; more of them fail the step.", ge=1, le=1000)
    ] = 100
    parallel: Annotated[int, Meta(description="Calls of `for_each` at once.", ge=1, le=16)] = 1
    on_failure: Annotated[
        Literal["stop", "continue", "compensate"] | None,
        Meta(description="What a failure means; without: what the plan says."),
    ] = None
    compensate: Annotated[
        Compensation | None, Meta(description="What undoes it when a later step fails with `compensate`.")
    ] = None


class Plan(Section, frozen=True):
    """Steps of mode `plan`. Those that do not wait for one another are called at the same time."""

    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=200)]
    output: Annotated[Any, Meta(description="The result: JSON with references in it.")]
    on_failure: Annotated[
        Literal["stop", "continue", "compensate"],
        Meta(
            description="`stop`: no further step begins, the call fails. `continue`: steps that need it are skipped. "
            "`compensate`: as stop, and what has succeeded is undone, last first."
        ),
    ] = "stop"


class Program(Section, frozen=True):
    """What mode `program` runs: Python in the hub's interpreter for programs; arguments are `inputs`, and the value of
    the last expression is the result."""

    file: Annotated[str, Meta(description="Path in the skill.", min_length=1, max_length=256)]


class Manifest(Section, frozen=True, rename={"schema_url": "$schema"}):
    """The whole document."""

    mode: Literal["script", "plan", "program"]
    input_schema: Annotated[dict[str, Any], Meta(description="JSON Schema of the arguments, an object.")]
    output_schema: Annotated[dict[str, Any], Meta(description="JSON Schema of the result, an object.")]
    version: Annotated[
        str,
        Meta(description="Semantic version.", pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]+)?$", max_length=64),
    ] = "1.0.0"
    entry: Annotated[Entry | None, Meta(description="Of mode `script`.")] = None
    plan: Annotated[Plan | None, Meta(description="Of mode `plan`.")] = None
    program: Annotated[Program | None, Meta(description="Of mode `program`.")] = None
    job: Annotated[
        bool | None,
        Meta(
            description="Whether calls run as jobs, which survive a restart of the hub and wait for people; without: "
            "those of a plan or program that is not read_only."
        ),
    ] = None
    limits: Limits = msgspec.field(default_factory=Limits)
    tools: Annotated[
        tuple[Glob, ...],
        Meta(
            description="Tools that it calls, full names or globs. They narrow what the caller may call.",
            max_length=64,
        ),
    ] = ()
    capabilities: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_.-]+:?[a-zA-Z0-9_./-]*$", max_length=64)], ...],
        Meta(description="What a caller must hold besides, such as `write:fs`.", max_length=32),
    ] = ()
    effects: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=300)], ...],
        Meta(description="What a call does, one sentence each; shown before it is approved.", max_length=16),
    ] = ()
    annotations: Behaviour = msgspec.field(default_factory=Behaviour)
    artifacts: Annotated[tuple[DeclaredArtifact, ...], Meta(max_length=64)] = ()
    schema_url: Annotated[str, Meta(description="Where editors find the schema of this document.", max_length=512)] = ""

    @property
    def is_job(self) -> bool:
        return self.mode != "script" and not self.annotations.read_only if self.job is None else self.job

    @property
    def required_artifacts(self) -> tuple[DeclaredArtifact, ...]:
        return tuple(declared for declared in self.artifacts if declared.required)


SECTIONS: Final[Mapping[type[Section], str]] = {
    Manifest: "The document",
    Entry: "`entry`",
    Limits: "`limits`",
    Behaviour: "`annotations`",
    DeclaredArtifact: "An entry of `artifacts`",
    Plan: "`plan`",
    Step: "An entry of `plan.steps`",
    PointerTest: "`if` as a test of a pointer",
    Compensation: "`compensate` of a step",
    Program: "`program`",
}
"""Each part of the document and the heading under which docs/skill-manifest.md lists its keys."""
_SECTION_OF_MODE: Final[Mapping[str, str]] = {"script": "entry", "plan": "plan", "program": "program"}


def manifest_schema() -> JsonObject:
    """Return the document's JSON Schema 2020-12, for editors."""
    schema = msgspec.json.schema(Manifest, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": MANIFEST_NAME,
        **schema,
    }


def read_manifest(data: bytes) -> Manifest:
    """Return the document if it is complete and consistent. Raises ManifestInvalid with all its problems."""
    try:
        document = loads(data, max_bytes=MANIFEST_MAX_BYTES)
    except ToolFailure as failure:
        raise ManifestInvalid(f"it is not strict JSON: {failure.error.message}") from None
    if not isinstance(document, dict):
        raise ManifestInvalid("it must be an object with `mode`, `input_schema` and `output_schema`")
    if strange := [*_unknown_keys(document)]:
        raise ManifestInvalid(*strange)
    try:
        manifest = msgspec.convert(document, Manifest)
    except msgspec.ValidationError as broken:
        raise ManifestInvalid(_explain_violation(broken)) from None
    if problems := [*_problems(manifest)]:
        raise ManifestInvalid(*problems)
    return manifest


def _problems(manifest: Manifest) -> Iterator[str]:
    yield from _of_mode(manifest)
    for place, schema in (("input_schema", manifest.input_schema), ("output_schema", manifest.output_schema)):
        yield from _of_schema(place, schema)
    if manifest.entry is not None:
        yield from _of_entry(manifest.entry)
    if manifest.program is not None and not is_path_within(manifest.program.file):
        yield f"program.file: `{manifest.program.file[:80]}` must be a path in the skill, without `..`"
    behaviour = manifest.annotations
    if behaviour.read_only and (behaviour.destructive or manifest.effects):
        yield "annotations.read_only: true, but the skill is declared destructive or has `effects`; leave one out"
    for at, declared in enumerate(manifest.artifacts):
        if not is_path_within(declared.name):
            yield f"artifacts[{at}].name: `{declared.name[:80]}` must be a glob of paths in the output folder"
    if manifest.artifacts and manifest.mode != "script":
        yield f"artifacts: only mode `script` leaves files; a {manifest.mode} hands on the artifacts of its calls"


def _of_mode(manifest: Manifest) -> Iterator[str]:
    for mode, section in _SECTION_OF_MODE.items():
        there = getattr(manifest, section) is not None
        if mode == manifest.mode and not there:
            yield f"{section}: missing; mode `{mode}` needs it"
        if mode != manifest.mode and there:
            yield f"{section}: belongs to mode `{mode}`, and `mode` is `{manifest.mode}`; remove one of them"


def _of_schema(place: str, schema: Mapping[str, Any]) -> Iterator[str]:
    if schema.get("type") != "object":
        yield f'{place}.type: must be "object"'
    try:
        compile_schema(dict(schema))
    except SchemaRefused as refused:
        yield f"{place}: {refused.advice}"


def _of_entry(entry: Entry) -> Iterator[str]:
    first = entry.argv[0]
    if first not in (PYTHON, SHELL) and not is_path_within(first):
        yield (
            f"entry.argv[0]: `{first[:80]}` must be `{PYTHON}`, `{SHELL}` or a path in the skill such as "
            "`scripts/run`, without `..`"
        )
    for at, word in enumerate(entry.argv[1:], 1):
        if word in (PYTHON, SHELL) or "\0" in word:
            yield f"entry.argv[{at}]: a program is named by the first word alone"
    for name, value in entry.env.items():
        if name.upper() in _FIXED_ENVIRONMENT or name.upper().startswith(_FIXED_PREFIXES):
            yield f"entry.env.{name}: is the hub's to set; remove it"
        elif is_secret_name(name):
            yield f"entry.env.{name}: looks like a secret, which may not stand in a skill; call a tool that holds it"
        if "\0" in value:
            yield f"entry.env.{name}: must not hold a NUL character"


def is_path_within(path: str) -> bool:
    """Return whether it is a plain relative path without `..`."""
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return plain and not PurePosixPath(path).is_absolute() and "\\" not in path and path.isprintable()


def _unknown_keys(document: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield all unknown keys at the top level, where most are."""
    names = [field.encode_name for field in msgspec.structs.fields(Manifest)]
    return (_unknown(key, names) for key in document if key not in names)


def _explain_violation(broken: msgspec.ValidationError) -> str:
    text, _, place = str(broken).partition(" - at `$")
    path = place.rstrip("`").lstrip(".").replace("[...]", ".*")
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        names = {field.encode_name for section in SECTIONS for field in msgspec.structs.fields(section)}
        text = _unknown(unknown.group(1), sorted(names))
    return f"{path}: {text}" if path else text


def _unknown(key: object, names: list[str]) -> str:
    near = difflib.get_close_matches(str(key), names, n=1)
    return f"unknown key `{str(key)[:64]}`" + (f"; did you mean `{near[0]}`?" if near else "")
