"""The tools that exist now: one dict, read on every call, changed by whole batches.

Step `resolve` reads it (`get` is a dict lookup); sources, operators and the composition root change it. A batch is
checked as a whole before any of it is applied, so that no reader ever sees half of one. The sorted snapshot is made on
the first read after a change and kept until the next; the revision follows each change. Only one event loop uses it, so
it has no locks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import msgspec

from toolhub_service.domain.errors.failure import HubFailure, ToolFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.tool import ToolSpec, ToolState
from toolhub_service.registry.names import CORE_PREFIX, check_name, check_not_reserved, skeleton
from toolhub_service.registry.snapshot import Snapshot, totals_of

SchemaCheck = Callable[[JsonObject], object]
"""Checks a schema.

Raises ToolFailure, HubFailure or ValueError when it is malformed or hostile; its result is not used.
"""


class CatalogChange(msgspec.Struct, frozen=True):
    """What one batch did. Each tuple is sorted by name."""

    added: tuple[ToolSpec, ...] = ()
    changed: tuple[ToolSpec, ...] = ()
    removed: tuple[ToolSpec, ...] = ()
    replaced: tuple[ToolSpec, ...] = ()
    """The previous specs of the changed ones, in their order."""


Listener = Callable[[CatalogChange], None]


@dataclass(slots=True)
class _Batch:
    """Changes that are checked and not yet applied."""

    put: dict[str, ToolSpec] = field(default_factory=dict)
    put_skeletons: dict[str, str] = field(default_factory=dict)
    remove: set[str] = field(default_factory=set)


@contextmanager
def naming_entry(index: int, name: str, *, of: int) -> Iterator[None]:
    """Begin the message of a failure with the entry of the batch that caused it: `tools[1] (acme/x): …`. A batch of one
    needs none."""
    try:
        yield
    except HubFailure as failure:
        if of == 1:
            raise
        message = f"tools[{index}] ({name}): {failure.message}"
        raise HubFailure(failure.reason, message, retry_after_s=failure.retry_after_s, **failure.metadata) from failure
    except ToolFailure as failure:
        if of == 1:
            raise
        message = f"tools[{index}] ({name}): {failure.error.message}"
        raise ToolFailure(msgspec.structs.replace(failure.error, message=message)) from failure


class ToolCatalog:
    """In-memory implementation of the Catalog port."""

    def __init__(self, *, check_schema: SchemaCheck, check_relaxed: SchemaCheck | None = None) -> None:
        """`check_relaxed`: for the schemas of tools of which not everything is enforced; None: `check_schema`."""
        self._check_schema = check_schema
        self._check_relaxed = check_relaxed or check_schema
        self._tools: dict[str, ToolSpec] = {}
        self._names_by_skeleton: dict[str, str] = {}
        self._listeners: list[Listener] = []
        # The sum behind the revision.
        self._shares = 0
        self.version = 0
        """Counts the changes: a cached value for a version is valid until the next one."""
        self._snapshot: Snapshot | None = None

    @property
    def revision(self) -> str:
        return f"{self._shares % 2**256:064x}"

    def get(self, name: str) -> ToolSpec | None:
        return self._tools.get(name)

    def all(self) -> Sequence[ToolSpec]:
        return self.snapshot().tools

    def snapshot(self) -> Snapshot:
        """Every tool, the revision and the totals; the same object until something changes."""
        if self._snapshot is None:
            tools = tuple(sorted(self._tools.values(), key=lambda spec: spec.name))
            self._snapshot = Snapshot(self.revision, tools, totals_of(tools))
        return self._snapshot

    def register(self, spec: ToolSpec, *, replace: bool = False) -> None:
        """Add one tool that is not built in.

        Raises HubFailure: ALREADY_EXISTS when the name is taken and `replace` is false, when another source owns it, or
        when it looks like a known name; PERMISSION_DENIED for `core/`; INVALID_ARGUMENT for the name or a schema.
        """
        batch = _Batch()
        self._check(spec, batch, replace=replace, built_in=False)
        self._apply(batch)

    def register_all(
        self, specs: Iterable[ToolSpec], *, replace: bool = False, removing: Iterable[str] = ()
    ) -> dict[str, HubFailure]:
        """Add many tools, and remove others, in one change, or do nothing.

        Return the refusals by name; empty means done.

        `removing` goes first, so that a source can replace its tools in one step.
        """
        batch, refused = _Batch(), {}
        for name in removing:
            try:
                self._check_removal(name, batch)
            except HubFailure as refusal:
                refused[name] = refusal
        refused |= self._check_all(specs, batch, replace=replace)
        if not refused:
            self._apply(batch)
        return refused

    def check_all(self, specs: Iterable[ToolSpec], *, replace: bool = False) -> None:
        """Raise the HubFailure of the first tool that `register_all` would refuse; it says how many more there are."""
        named = list(specs)
        refused = self._check_all(named, _Batch(), replace=replace)
        if not refused:
            return
        name, first = next(iter(refused.items()))
        others = len(refused) - 1
        more = f" ({others} more were refused; nothing was registered.)" if others else ""
        # The last of that name: of two alike the second is refused.
        index = max(at for at, spec in enumerate(named) if spec.name == name)
        with naming_entry(index, name, of=len(named)):
            raise HubFailure(first.reason, first.message + more, retry_after_s=first.retry_after_s, **first.metadata)

    def register_builtins(self, specs: Iterable[ToolSpec]) -> None:
        """Add built-in tools, the only ones in `core/`; for the composition root.

        Raises HubFailure like `register`; all or none.
        """
        batch = _Batch()
        for spec in specs:
            self._check(spec, batch, replace=False, built_in=True)
        self._apply(batch)

    def unregister(self, name: str) -> None:
        """Remove a tool. Raises HubFailure NOT_FOUND, or PERMISSION_DENIED for a built-in tool (disable it instead)."""
        batch = _Batch()
        self._check_removal(name, batch)
        self._apply(batch)

    def set_state(self, name: str, state: ToolState, reason: str = "") -> None:
        """Change whether a tool may be called, built-in ones too. Raises HubFailure NOT_FOUND."""
        spec = self._tools.get(name)
        if spec is None:
            raise unknown_tool(name)
        self._apply(_Batch(put={name: replace(spec, state=state, state_reason=reason)}))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each change, in order of subscription; it must not raise.

        Return a function that ends that and may be called twice.
        """
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def _check_all(self, specs: Iterable[ToolSpec], batch: _Batch, *, replace: bool) -> dict[str, HubFailure]:
        refused: dict[str, HubFailure] = {}
        for spec in specs:
            try:
                self._check(spec, batch, replace=replace, built_in=False)
            except HubFailure as refusal:
                refused[spec.name] = refusal
        return refused

    def _check(self, spec: ToolSpec, batch: _Batch, *, replace: bool, built_in: bool) -> None:
        """Check the tool and put it into the batch. Raises HubFailure."""
        check_name(spec.name)
        if not built_in:
            check_not_reserved(spec.name)
        elif not spec.name.startswith(CORE_PREFIX):
            message = f"a built-in tool is named `{CORE_PREFIX}…`"
            raise HubFailure(Reason.TOOL_NAME_INVALID, message, tool=spec.name)
        self._check_unlike_others(spec, batch)
        self._check_free(spec, batch, replace=replace)
        if not built_in:  # a test compiles the built-in schemas; it would take 40 ms of each start
            self._check_schemas(spec)
        batch.put[spec.name] = spec
        batch.put_skeletons[skeleton(spec.name)] = spec.name

    def _check_unlike_others(self, spec: ToolSpec, batch: _Batch) -> None:
        key = skeleton(spec.name)
        known = self._names_by_skeleton.get(key)
        twin = batch.put_skeletons.get(key) or (known if known not in batch.remove else None)
        if twin is not None and twin != spec.name:
            raise HubFailure(
                Reason.TOOL_NAME_CONFUSABLE,
                f"`{spec.name}` differs from `{twin}` only by case or separators: choose a name that reads differently",
                tool=spec.name,
                known=twin,
            )

    def _check_free(self, spec: ToolSpec, batch: _Batch, *, replace: bool) -> None:
        if spec.name in batch.put:
            raise refuse_taken_name(spec.name, "the batch names it twice")
        known = self._tools.get(spec.name)
        if known is None or spec.name in batch.remove:
            return
        if known.source != spec.source:
            raise refuse_taken_name(spec.name, f"the source `{known.source}` owns it")
        if not replace:
            raise refuse_taken_name(spec.name, "replace it explicitly or choose another name")

    def _check_schemas(self, spec: ToolSpec) -> None:
        check = self._check_relaxed if spec.unenforced else self._check_schema
        for place, schema in (("inputSchema", spec.input_schema), ("outputSchema", spec.output_schema)):
            try:
                check(schema)
            except (ToolFailure, HubFailure, ValueError) as failure:
                raise refuse_broken_schema(spec.name, place, failure) from failure

    def _check_removal(self, name: str, batch: _Batch) -> None:
        if name not in self._tools or name in batch.remove:
            raise unknown_tool(name)
        check_not_reserved(name)
        batch.remove.add(name)

    def _apply(self, batch: _Batch) -> None:
        change = self._change(batch)
        if change == CatalogChange():
            return
        for spec in change.removed:
            self._shares -= _share(self._tools.pop(spec.name))
            del self._names_by_skeleton[skeleton(spec.name)]
        for spec in change.replaced:
            self._shares -= _share(spec)
        for spec in change.added + change.changed:
            self._shares += _share(spec)
            self._tools[spec.name] = spec
            self._names_by_skeleton[skeleton(spec.name)] = spec.name
        self._snapshot = None
        self.version += 1
        for listener in tuple(self._listeners):
            listener(change)

    def _change(self, batch: _Batch) -> CatalogChange:
        put = sorted(batch.put.values(), key=lambda spec: spec.name)
        known = self._tools
        changed = tuple(spec for spec in put if spec.name in known and not are_identical(known[spec.name], spec))
        return CatalogChange(
            added=tuple(spec for spec in put if spec.name not in known),
            changed=changed,
            removed=tuple(known[name] for name in sorted(batch.remove) if name not in batch.put),
            replaced=tuple(known[spec.name] for spec in changed),
        )


def _share(spec: ToolSpec) -> int:
    """Return what the tool adds to the revision of its catalog."""
    return int.from_bytes(hashlib.sha256(f"{spec.name} {spec.digest} {spec.state.value}".encode()).digest())


def are_identical(one: ToolSpec, other: ToolSpec) -> bool:
    """Return whether all fields are equal; ToolSpec's own equality is by digest, which omits state, limits and tags."""
    return all(getattr(one, item.name) == getattr(other, item.name) for item in fields(ToolSpec))


def refuse_taken_name(name: str, why: str) -> HubFailure:
    return HubFailure(Reason.TOOL_EXISTS, f"the name `{name}` is taken: {why}", tool=name)


def unknown_tool(name: str) -> HubFailure:
    """Return the operators' error for a name that no tool has."""
    return HubFailure(Reason.TOOL_NOT_FOUND, f"there is no tool `{name[:128]}`", tool=name[:128])


def refuse_broken_schema(name: str, place: str, failure: ToolFailure | HubFailure | ValueError) -> HubFailure:
    """Return the error that names the schema, the place in it when known, and the problem, in at most 500
    characters."""
    path, why = place, str(failure)
    if isinstance(failure, ToolFailure):
        why = failure.error.message
        if failure.error.violations:
            path, why = place + failure.error.violations[0].path, failure.error.violations[0].message
    elif isinstance(failure, HubFailure):
        path = place + failure.metadata.get("path", "")
    message = f"the schema of `{name}` cannot be used: {path}: {why[:500]}"
    return HubFailure(Reason.TOOL_SCHEMA_INVALID, message, tool=name, path=path)
