"""What a source offers, made ready for judgement: the digest of each definition and what looks wrong with it.

Both are CPU on text that a stranger wrote, so the work is bounded for each definition, done once for each that is new,
lets others run in between, and is done in a thread for a large one, which takes a tenth of a second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

from toolhub_service.domain.json import JsonObject, JsonValue
from toolhub_service.domain.pin import pin_digest
from toolhub_service.domain.source import Definition
from toolhub_service.guards.descriptions import Finding, judge_definition
from toolhub_service.registry.turns import Turns, in_thread

DEFINITION_MAX_CHARS: Final = 1024 * 1024
"""Of keys and texts; a larger one cannot be kept in a pin, so nobody can approve it."""
SMALL_CHARS: Final = 8 * 1024
"""So much is judged in 2 ms."""
LEVELS_MAX: Final = 200
"""Arrays and objects within each other; stores write 254."""
_VALUE_CHARS: Final = 4
"""What any value takes besides its text."""


@dataclass(frozen=True, slots=True)
class Offer:
    definition: Definition
    digest: str
    """Empty: it cannot be kept, and so never be approved."""
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        return self.definition.spec.name


async def offers_of(
    source: str,
    definitions: Sequence[Definition],
    before: Sequence[Offer] = (),
    *,
    judge: Callable[[JsonObject], tuple[Finding, ...]] = judge_definition,
) -> tuple[Offer, ...]:
    """In the order given. What stood word for word in `before` is not looked at again."""
    same = {id(offer.definition): offer for offer in before}
    known = {offer.digest: offer for offer in before if offer.digest}
    offers: list[Offer] = []
    turns = Turns()
    for definition in definitions:
        offer = same.get(id(definition))
        if offer is None:
            judged = source, definition, known, judge
            is_small = fits(definition.remote, SMALL_CHARS)
            offer = _kept_offer(*judged) if is_small else await in_thread(_offer, *judged)
        offers.append(offer)
        await turns.given()
    return tuple(offers)


def nameless(definition: JsonObject) -> str:
    """Canonical JSON of everything but the name: what a renamed tool has in common with what it was."""
    return json.dumps({key: value for key, value in definition.items() if key != "name"}, sort_keys=True)


def _offer(
    source: str,
    definition: Definition,
    known: Mapping[str, Offer],
    judge: Callable[[JsonObject], tuple[Finding, ...]],
) -> Offer:
    if not fits(definition.remote, DEFINITION_MAX_CHARS):
        return Offer(definition, "")
    return _kept_offer(source, definition, known, judge)


def _kept_offer(
    source: str,
    definition: Definition,
    known: Mapping[str, Offer],
    judge: Callable[[JsonObject], tuple[Finding, ...]],
) -> Offer:
    digest = pin_digest(source, definition.remote)
    seen = known.get(digest)
    return Offer(definition, digest, seen.findings if seen else judge(definition.remote))


def fits(definition: JsonObject, max_chars: int) -> bool:
    """Whether it is of bounded size and depth, and has no number and no text that JSON cannot hold; walked no further
    than `max_chars` go."""
    left = max_chars
    waiting: list[tuple[JsonValue, int]] = [(definition, LEVELS_MAX)]
    while waiting:
        value, levels = waiting.pop()
        left -= _VALUE_CHARS
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                return False
            waiting.extend((member, levels - 1) for member in (*value, *value.values()))
        elif isinstance(value, str):
            left -= len(value)
            if not _is_unicode(value):
                return False
        elif isinstance(value, Sequence):
            waiting.extend((item, levels - 1) for item in value)
        elif isinstance(value, float) and not isfinite(value):
            return False
        if left < 0 or levels < 0:
            return False
    return True


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
