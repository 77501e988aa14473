"""Tools that operators registered over the wire: each belongs to a configured source, and its record is its pin.

The message has the tool's name, its schemas, and which tool or workflow of the source it runs; only the configuration
has the source's address and credentials. The source's kind makes the definition, by the rules for what the source
itself offers. The registration is an operator's approval of exactly that definition, kept as a pin: so it outlives
restarts, reaches every hub on the same store, and can be rejected later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from toolhub_service.domain.errors.failure import HubFailure
from toolhub_service.domain.errors.reasons import Reason
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.pin import Pin, PinState
from toolhub_service.domain.source import Definition, SourceObserver, ToolSource, Trust
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.discovery.offers import DEFINITION_MAX_CHARS, Offer, fits

MakeRegistered = Callable[[JsonObject], Definition]
"""Makes a definition from what `words_of` returns for a tool, or from the `remote` of an earlier definition.

Raises ValueError with a reason for the operator.
"""

REGISTERED_MAX: Final = 1_000
"""Most registered tools of one source."""


def words_of(spec: ToolSpec) -> JsonObject:
    """Return the tool as a source would describe it, with the name after the namespace."""
    hints = spec.annotations
    return {
        "name": spec.name.partition("/")[2],
        "resourceId": spec.resource_id,
        "description": spec.description,
        "inputSchema": spec.input_schema,
        "outputSchema": spec.output_schema,
        "annotations": {"destructiveHint": hints.destructive, "openWorldHint": hints.open_world},
    }


class RegisteredTools:
    """The registered tools of one source."""

    def __init__(self, source: ToolSource, observer: SourceObserver, make: MakeRegistered | None) -> None:
        """`make` is None when the source's kind has no registered tools."""
        self._source = source
        self._observer = observer
        self._make = make
        self.are_possible = make is not None
        # By digest, so that a definition is made once.
        self._made: dict[str, Definition | None] = {}

    def definition(self, spec: ToolSpec) -> Definition:
        """Return the definition that the source's kind makes of the tool.

        Raises HubFailure INVALID_ARGUMENT, and FAILED_PRECONDITION for a kind whose tools are not registered.
        """
        source = self._source
        if self._make is None:
            message = f"tools of kind {source.kind.value} are not registered over the wire"
            raise HubFailure(Reason.SOURCE_NOT_CONFIGURED, message, source=source.name, tool=spec.name)
        if spec.endpoint not in ("", source.endpoint):
            raise refuse_definition(
                spec.name, f"`endpoint` is the configuration's, {source.endpoint!r}: leave it empty"
            )
        try:
            definition = self._make(words_of(spec))
        except ValueError as wrong:
            raise refuse_definition(spec.name, str(wrong)) from wrong
        if definition.spec.name != spec.name:
            raise refuse_definition(spec.name, f"the source {source.name!r} would call it {definition.spec.name!r}")
        # Only what a server describes by itself is relaxed: here, its author is asked to correct it.
        problem = definition.problem or "; ".join(definition.spec.unenforced)
        if problem or not fits(definition.remote, DEFINITION_MAX_CHARS):
            raise refuse_definition(spec.name, problem or "it is too large or too deep to be kept")
        return definition

    def offers(self, pins: Sequence[Pin], own: Sequence[Offer]) -> tuple[Offer, ...]:
        """Return the offers of the pins whose names are not in `own`: a tool that the source itself offers takes
        precedence."""
        if self._make is None:
            return ()
        names = {offer.name for offer in own}
        pins = [pin for pin in pins if pin.tool not in names]
        if self._source.trust is Trust.ALWAYS:  # no pins are checked there: rejected tools are left out here
            endpoint = self._source.endpoint
            pins = [pin for pin in pins if pin.state is PinState.APPROVED and not is_moved(pin, endpoint)]
        made = [(pin, self.restore_definition(pin)) for pin in pins]
        return tuple(Offer(definition, pin.digest) for pin, definition in made if definition is not None)

    def restore_definition(self, pin: Pin) -> Definition | None:
        """Return the pin's definition; None when today's configuration does not offer it any more."""
        if pin.digest not in self._made:
            self._made[pin.digest] = self._remade(pin)
        return self._made[pin.digest]

    def _remade(self, pin: Pin) -> Definition | None:
        if self._make is None:
            return None
        try:
            definition = self._make(pin.definition)
        except ValueError as wrong:
            self._observer.on_problem(pin.source, wrong)
            return None
        return definition if definition.spec.name == pin.tool else None


def is_moved(pin: Pin, endpoint: str) -> bool:
    """Return whether the pin was registered while its source had another endpoint."""
    return pin.registered and pin.endpoint not in ("", endpoint)


def refuse_definition(tool: str, why: str) -> HubFailure:
    message = f"{tool} cannot be registered: {why.rstrip('.')}."
    return HubFailure(Reason.TOOL_INVALID, message, tool=tool)
