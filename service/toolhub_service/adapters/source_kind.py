"""What each kind of source declares, in the `kind.py` of its folder; `app/kinds.py` lists the kinds.

All differences between kinds are declared there: the section of sources.yaml, checks beyond its schema, which values
may be secrets, requirements on this machine, how it is opened, and its options of `toolhub sources add`. A `kind.py`
imports no library of an extra; the functions that open and preview do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

import msgspec

from toolhub_service.adapters.upstream import no_source
from toolhub_service.domain.call import NO_PRECONDITIONS, GrantedCall, PlannedCall, Preconditions
from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.ports import Adapter, Clock, FixedTerms, InnerCalls, Randomness
from toolhub_service.domain.source import Definition, ResourceNews, SourceObserver, ToolSource, Trust
from toolhub_service.domain.tool import ToolKind, ToolSpec
from toolhub_service.sections.source_config import Section, Source, Value

if TYPE_CHECKING:
    from toolhub_service.credentials.vault import Vault
    from toolhub_service.domain.artifact import ArtifactService
    from toolhub_service.domain.job_ports import RunningJobs
    from toolhub_service.guards.secrets import Redactor
    from toolhub_service.sandbox.hidden import HiddenPaths
    from toolhub_service.sandbox.ladder import Ladder
    from toolhub_service.sandbox.script_python import ScriptPython
    from toolhub_service.tools.programs.interpreter import Interpreter


Config = TypeVar("Config", bound=Source)
FileKeys = tuple[str, ...] | Callable[[Any], tuple[str, ...]]
"""Keys of a section that name files or folders, or a function that returns those of a given section."""
_VALUES_MAX: Final = 6
_TEXT_MAX_CHARS: Final = 60
_ARGUMENTS_MAX: Final = 50


class SourceDeps(msgspec.Struct, frozen=True):
    """What the hub provides to every kind for opening its sources."""

    redactor: Redactor
    clock: Clock
    randomness: Randomness
    running: RunningJobs
    artifacts: ArtifactService
    observer: SourceObserver
    resource_news: ResourceNews
    trace: Callable[[], str]
    """Returns the `traceparent` of the running call; empty outside of one."""
    trace_meta: Callable[[], dict[str, str]]
    """Returns `traceparent` and `tracestate` by name; empty outside of a call."""
    tracer: Any
    """OpenTelemetry's tracer, for spans inside a tool."""
    keep_raw: bool
    """Whether results contain the upstream's raw answer."""
    trusted_namespaces: tuple[str, ...]
    inner_calls: Callable[[GrantedCall], InnerCalls]
    """Returns what a running call may call itself."""
    programs: Interpreter
    script_python: ScriptPython
    data_dir: Path
    """The hub's data folder, in which a kind may store what it fetches in a folder of its own."""
    hides: Callable[[], HiddenPaths | None]
    """Returns how the data folder is hidden from worker processes; None: it is not hidden."""
    ladder: Ladder
    """Confines the code of sources that may see only the files given to them."""
    vault: Vault
    """Credentials of callers for sources."""


class OpenedSource(msgspec.Struct, frozen=True):
    source: ToolSource
    restored: Callable[[JsonObject], Definition | None] | None = None
    """Makes a definition from a stored pin."""
    registered: Callable[[JsonObject], Definition] | None = None
    """Makes a definition of a tool that an operator has registered, from its description by
    `registry/discovery/offers.py`; raises ValueError. None: tools of the kind are not registered over the wire."""


Opened = TypeVar("Opened")


class SourceAdapter(Generic[Opened]):
    """What the adapters of all kinds of sources share: sources that are added and removed while calls run, and default
    answers that do not depend on the call."""

    def __init__(self) -> None:
        # What calls need, by source. Running calls finish on the source that they began on, even when it is replaced.
        self._sources: dict[str, Opened] = {}

    def remove(self, name: str) -> None:
        """Remove a source; does nothing when there is none of that name."""
        self._sources.pop(name, None)

    def _source(self, call: GrantedCall) -> Opened:
        """Return the call's source. Raises ToolFailure when it was removed."""
        source = self._sources.get(call.spec.source)
        if source is None:
            raise no_source(call)
        return source

    async def preconditions(self, planned: PlannedCall) -> Preconditions:
        return NO_PRECONDITIONS

    def has_side_effects(self, planned: PlannedCall) -> bool:
        return planned.spec.has_side_effects

    def upstream(self, planned: PlannedCall) -> str:
        return planned.spec.upstream_key

    def fixed_terms(self, spec: ToolSpec) -> FixedTerms:
        return FixedTerms(spec.has_side_effects, spec.upstream_key)


class Opener(Protocol):
    """Opens the sources of one kind, and holds the adapter that runs their tools."""

    @property
    def adapter(self) -> Adapter: ...

    def endpoint(self, name: str, entry: Any) -> str:
        """Return the address of the source, without credentials, whether it can be opened or not."""
        ...

    def open(self, name: str, entry: Any) -> OpenedSource:
        """Open the source without connecting yet. Raises ValueError (also ValueMissing), OSError or HubFailure for the
        operator."""
        ...

    def forget(self, name: str) -> None:
        """Drop the source; its tools are called no more."""
        ...


class SourceOption(msgspec.Struct, frozen=True):
    """An option of `toolhub sources add` that belongs to one kind."""

    name: str
    flag: str
    help: str
    metavar: str = ""
    is_many: bool = False
    """May be given several times."""
    is_switch: bool = False
    is_pairs: bool = False
    """Given several times as NAME=VALUE; becomes a mapping."""
    is_path: bool = False
    is_secret: bool = False
    """The entry's key of the same name is a secret: a plain text is moved into a file of its own."""


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, slots=True)
class SourceKind(Generic[Config]):
    kind: ToolKind
    """Its value is the `kind` in sources.yaml and, in capitals, the kind in the protocol."""
    config: type[Config]
    """Its section of sources.yaml."""
    sections: Mapping[type[Section], str]
    """Sections within `config`, each with the heading under which docs/configuration.md lists its keys."""
    check: Callable[[str, Config], None]
    """Checks of an entry at that place that the schema cannot express. Raises SourceInvalid."""
    opener: str
    """`module:name` of its `Opener`, made with SourceDeps. It is a name because importing it takes up to a second."""
    package: str = ""
    """Import name of a distribution that it needs to be opened; empty: none."""
    values: Callable[[Config], Iterator[tuple[str, Value]]] = _nothing
    """Yields each value that may be a reference, with its place in the entry."""
    files: Mapping[type[Section], FileKeys] = field(default_factory=dict)
    """Keys, by section, that name files or folders; relative paths start at the folder of sources.yaml."""
    missing: Callable[[Config, tuple[str, ...]], Iterator[str]] = _nothing
    """Yields one sentence for each other thing that the entry refers to and this machine lacks; the second argument is
    `tools.trusted_namespaces`."""
    remarks: Callable[[Config], Iterator[str]] = _nothing
    """Yields one sentence for each problem that does not prevent its use, found without a hub."""
    unbounded: Callable[[Config], Iterator[str]] = _nothing
    """Yields one sentence for each part of the entry that accepts any path of the machine."""
    preview: str = ""
    """`module:name` of a function that takes a source's name, its entry and a saved `/object_info` of ComfyUI or None,
    and returns the WorkflowReport of its workflows without asking a server; empty: there is none."""
    options: tuple[SourceOption, ...] = ()
    entry_of: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """Returns the keys that `options` give besides `url` and `headers`. Raises SourceInvalid for options that exclude
    each other. None: such sources are not added by options."""
    has_trust: bool = True
    """Whether `trust` is a key of `config`."""
    trust: Callable[[Config], Trust] | None = None
    """Returns the trust in an entry, where that depends on more than its key `trust`."""
    relays: Callable[[Config], Iterable[str]] = _nothing
    """Returns which requests of its server go to the client that makes a call: names of MCP's client capabilities."""
    registering: str = ""
    """Where to configure tools of the kind if they cannot be registered over the wire; empty: they can."""

    @property
    def name(self) -> str:
        return self.kind.value

    def load_opener(self) -> Callable[[SourceDeps], Opener]:
        """Import what its sources need. Raises ModuleNotFoundError when its extra is not installed."""
        found: Callable[[SourceDeps], Opener] = _load(self.opener)
        return found

    def load_preview(self) -> Callable[[str, Config, JsonObject | None], WorkflowReport]:
        found: Callable[[str, Config, JsonObject | None], WorkflowReport] = _load(self.preview)
        return found

    def trust_of(self, entry: Source) -> Trust:
        """Return when its definitions may be called."""
        if self.trust is not None:
            return self.trust(cast("Config", entry))
        return Trust(getattr(entry, "trust", Trust.ALWAYS.value))


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


class WorkflowTool(msgspec.Struct, frozen=True):
    """The tool that a workflow becomes."""

    name: str
    """Full name; for a template without a source its own name."""
    kind: str
    place: str
    """File, or path in sources.yaml."""
    version: str = ""
    description: str = ""
    mode: str = ""
    """`sync`, `async` or `job`."""
    capabilities: tuple[str, ...] = ()
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict)
    """A short description of the accepted values, by argument."""
    results: Mapping[str, str] = msgspec.field(default_factory=dict)
    facts: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Other distinguishing facts: digests, where it is called."""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class WorkflowReport(msgspec.Struct, frozen=True):
    """The output of `toolhub workflows check`: the tools that workflows become, made without asking a server."""

    tools: tuple[WorkflowTool, ...]
    problems: tuple[str, ...] = ()
    """Problems of workflows that did not become a tool, each with its place."""
    notes: tuple[str, ...] = ()
    """What cannot be known without a server."""

    @property
    def ok(self) -> bool:
        return not self.problems and not any(tool.problems for tool in self.tools)


def summary_of(schema: JsonObject) -> dict[str, str]:
    """Return the top-level arguments, such as `{"width": "integer 1 … 4096, required"}`, at most fifty."""
    properties = schema.get("properties")
    required = schema.get("required")
    needed = required if isinstance(required, Sequence) and not isinstance(required, str) else ()
    named = properties.items() if isinstance(properties, Mapping) else ()
    return {name: ", ".join(_words(part, is_required=name in needed)) for name, part in [*named][:_ARGUMENTS_MAX]}


def _words(schema: JsonValue, *, is_required: bool) -> Iterator[str]:
    part = schema if isinstance(schema, Mapping) else {}
    yield _kind(part)
    if is_required:
        yield "required"
    if "default" in part:
        yield f"else {_short_text(part['default'])}"


def _kind(schema: JsonObject) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        more = f" or {len(values) - _VALUES_MAX} more" if len(values) > _VALUES_MAX else ""
        return " | ".join(map(_short_text, values[:_VALUES_MAX])) + more
    if schema.get("format") == "hub-artifact":
        return "artifact id"
    kind = schema.get("type")
    name = kind if isinstance(kind, str) else "/".join(map(str, kind)) if isinstance(kind, Sequence) else "anything"
    return " ".join(filter(None, (name, _range(schema))))


def _range(schema: JsonObject) -> str:
    lowest, highest = schema.get("minimum"), schema.get("maximum")
    if lowest is None and highest is None:
        return ""
    return f"{'' if lowest is None else f'{lowest} '}…{'' if highest is None else f' {highest}'}"


def _short_text(value: JsonValue) -> str:
    text = " ".join(str(value).split()) if isinstance(value, str) else repr(value)
    return text if len(text) <= _TEXT_MAX_CHARS else f"{text[: _TEXT_MAX_CHARS - 1]}…"
