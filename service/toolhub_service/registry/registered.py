"""Tools that operators registered over the wire: each belongs to a configured source, and its record is its pin.

The message says what the tool is called, what it takes and gives, and which tool or workflow of the source it runs;
where that source is and with which credentials it is called is the configuration's alone. The source's kind makes the
definition, by the rules for what the source itself offers. The registration is an operator's approval of exactly that
definition, kept as a pin: so it outlives restarts, reaches every hub on the same store, and can be rejected later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from toolhub_service.domain.errors import HubFailure
from toolhub_service.domain.json import JsonObject
from toolhub_service.domain.reasons import Reason
from toolhub_service.domain.source import Definition, Pin, PinState, SourceObserver, ToolSource, Trust
from toolhub_service.domain.tool import ToolSpec
from toolhub_service.registry.offers import DEFINITION_MAX_CHARS, Offer, fits
from toolhub_service.registry.pin_ledger import PinLedger
from toolhub_service.registry.pins import is_moved

MakeRegistered = Callable[[JsonObject], Definition]
"""A definition from what `words_of` says of a tool, or from the `remote` of one that it has made before. Raises
ValueError with a reason for the operator."""

REGISTERED_MAX: Final = 1_000
"""Registered tools of one source."""


def words_of(spec: ToolSpec) -> JsonObject:
    """The tool as a source would describe it, its own name being what follows the namespace."""
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
    """Of one source."""

    def __init__(
        self, source: ToolSource, ledger: PinLedger, observer: SourceObserver, make: MakeRegistered | None
    ) -> None:
        """`make` is None where tools of the kind are not registered."""
        self._source = source
        self._ledger = ledger
        self._observer = observer
        self._make = make
        self._made: dict[str, Definition | None] = {}
        """By digest: a definition is made once."""

    def definition(self, spec: ToolSpec) -> Definition:
        """What the source's kind makes of it. Raises HubFailure INVALID_ARGUMENT, and FAILED_PRECONDITION for a kind
        whose tools are not registered."""
        source = self._source
        if self._make is None:
            message = f"tools of kind {source.kind.value} are not registered over the wire"
            raise HubFailure(Reason.SOURCE_NOT_CONFIGURED, message, source=source.name, tool=spec.name)
        if spec.endpoint not in ("", source.endpoint):
            raise _invalid(spec.name, f"`endpoint` is the configuration's, {source.endpoint!r}: leave it empty")
        try:
            definition = self._make(words_of(spec))
        except ValueError as wrong:
            raise _invalid(spec.name, str(wrong)) from wrong
        if definition.spec.name != spec.name:
            raise _invalid(spec.name, f"the source {source.name!r} would call it {definition.spec.name!r}")
        if definition.problem or not fits(definition.remote, DEFINITION_MAX_CHARS):
            raise _invalid(spec.name, definition.problem or "it is too large or too deep to be kept")
        return definition

    async def offers(self, taken: Sequence[Offer]) -> tuple[Offer, ...]:
        """Those whose names the source itself does not offer: what it says of its own tools comes first."""
        if self._make is None:
            return ()
        names = {offer.name for offer in taken}
        pins = [pin for pin in await self._ledger.registered(self._source.name) if pin.tool not in names]
        if self._source.trust is Trust.ALWAYS:  # no pin is looked at there, so that a rejected tool is left out here
            endpoint = self._source.endpoint
            pins = [pin for pin in pins if pin.state is PinState.APPROVED and not is_moved(pin, endpoint)]
        made = [(pin, self.restored(pin)) for pin in pins]
        return tuple(Offer(definition, pin.digest) for pin, definition in made if definition is not None)

    def restored(self, pin: Pin) -> Definition | None:
        """None when it is not offered any more, under what the configuration says today."""
        if pin.digest not in self._made:
            self._made[pin.digest] = self._remade(pin)
        return self._made[pin.digest]

    def _remade(self, pin: Pin) -> Definition | None:
        if self._make is None:
            return None
        try:
            definition = self._make(pin.definition)
        except ValueError as wrong:
            self._observer.troubled(pin.source, wrong)
            return None
        return definition if definition.spec.name == pin.tool else None


def _invalid(tool: str, why: str) -> HubFailure:
    message = f"{tool} cannot be registered: {why.rstrip('.')}."
    return HubFailure(Reason.TOOL_INVALID, message, tool=tool)
