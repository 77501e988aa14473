"""What each kind of source declares, in the `kind.py` of its folder; `app/kinds.py` lists the kinds.

Everything that differs from kind to kind is said there: the section of sources.yaml, what a schema cannot say of it,
which of its values may be secrets, what it needs on this machine, how it is opened, and its options of `toolhub sources
add`. A `kind.py` imports no library of an extra: what needs one is imported by the functions that open and preview.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from toolhub_service.adapters.source_config import Section, Source, Value
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.ports import Adapter, Clock, Randomness
from toolhub_service.domain.source import Definition, SourceObserver, ToolSource, Trust
from toolhub_service.domain.tool import ToolKind

if TYPE_CHECKING:
    from toolhub_service.adapters.workflow_report import WorkflowReport
    from toolhub_service.domain.artifact import ArtifactDesk
    from toolhub_service.domain.job_ports import RunningJobs
    from toolhub_service.guards.secrets import Redactor
    from toolhub_service.tools.confinement import HiddenFolder

Config = TypeVar("Config", bound=Source)


@dataclass(frozen=True, slots=True)
class SourceDeps:
    """What the hub gives to every kind for opening its sources."""

    redactor: Redactor
    clock: Clock
    randomness: Randomness
    running: RunningJobs
    artifacts: ArtifactDesk
    observer: SourceObserver
    trace: Callable[[], str]
    """The `traceparent` of the call that runs; empty outside of one."""
    tracer: Any
    """OpenTelemetry's, for spans of what runs inside a tool."""
    keep_raw: bool
    """Whether results carry the upstream's own answer."""
    trusted_namespaces: tuple[str, ...]
    hides: Callable[[], HiddenFolder | None]
    """The data folder, as worker processes are kept from it; None: they are not."""


@dataclass(frozen=True, slots=True)
class OpenedSource:
    source: ToolSource
    restored: Callable[[JsonObject], Definition | None] | None = None
    """Makes a definition of what a pin has kept."""
    registered: Callable[[JsonObject], Definition] | None = None
    """Makes a definition of a tool that an operator has registered, from `registry/registered.py`'s words of it; raises
    ValueError. None: tools of the kind are not registered over the wire."""


class Opener(Protocol):
    """Makes the sources of one kind, and knows the adapter that runs their tools."""

    @property
    def adapter(self) -> Adapter: ...

    def endpoint(self, name: str, entry: Any) -> str:
        """Where the source is, without credentials, whether it can be opened or not."""
        ...

    def open(self, name: str, entry: Any) -> OpenedSource:
        """Nothing is connected yet. Raises ValueError (ValueMissing, too), OSError or HubFailure for the operator."""
        ...

    def forget(self, name: str) -> None:
        """Its tools are called no more."""
        ...


@dataclass(frozen=True, slots=True)
class SourceOption:
    """An option of `toolhub sources add` that belongs to one kind."""

    name: str
    flag: str
    help: str
    metavar: str = ""
    is_many: bool = False
    """May be given often."""
    is_switch: bool = False
    is_pairs: bool = False
    """Given often as NAME=VALUE; becomes a mapping."""
    is_path: bool = False
    is_secret: bool = False
    """The key of the entry that bears its name is a secret: a text in the clear is moved into a file of its own."""


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True, slots=True)
class SourceKind(Generic[Config]):
    kind: ToolKind
    """Its value is the `kind` in sources.yaml and, in capitals, the kind on the wire."""
    config: type[Config]
    """Its section of sources.yaml."""
    sections: Mapping[type[Section], str]
    """Sections within `config`, by the heading under which docs/configuration.md lists their keys."""
    check: Callable[[str, Config], None]
    """What the schema cannot say of an entry at that place. Raises SourceInvalid."""
    opener: str
    """`module:name` of its `Opener`, made with SourceDeps: a name, for importing it takes up to a second."""
    package: str = ""
    """Distribution without which it cannot be opened, by the name to import; empty: none."""
    values: Callable[[Config], Iterator[tuple[str, Value]]] = _nothing
    """Each value that may be a reference, with its place in the entry."""
    files: Mapping[type[Section], tuple[str, ...]] = field(default_factory=dict)
    """Keys, by section, that name files or folders: relative ones count from the folder of sources.yaml."""
    missing: Callable[[Config, tuple[str, ...]], Iterator[str]] = _nothing
    """What else the entry refers to and is not on this machine, a sentence each; the second argument is
    `tools.trusted_namespaces`."""
    unbounded: Callable[[Config], Iterator[str]] = _nothing
    """What of the entry takes any path of the machine, a sentence each."""
    preview: str = ""
    """`module:name` of a function of a source's name, its entry and a saved `/object_info` of ComfyUI or None, which
    returns the WorkflowReport of its workflows without asking a server; empty: it has none."""
    options: tuple[SourceOption, ...] = ()
    entry_of: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    """The keys that `options` give besides `url` and `headers`. Raises SourceInvalid for options that do not go
    together. None: such sources are not added by options."""
    has_trust: bool = True
    """Whether `trust` is a key of `config`."""
    registering: str = ""
    """Where tools of the kind are configured that cannot be registered over the wire; empty: they can."""

    @property
    def name(self) -> str:
        return self.kind.value

    def load_opener(self) -> Callable[[SourceDeps], Opener]:
        """Imports what its sources need. Raises ModuleNotFoundError when its extra is not installed."""
        found: Callable[[SourceDeps], Opener] = _load(self.opener)
        return found

    def load_preview(self) -> Callable[[str, Config, JsonObject | None], WorkflowReport]:
        found: Callable[[str, Config, JsonObject | None], WorkflowReport] = _load(self.preview)
        return found

    def trust_of(self, entry: Source) -> Trust:
        """When a definition of it may be called."""
        return Trust(getattr(entry, "trust", Trust.ALWAYS.value))


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
