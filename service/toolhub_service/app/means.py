"""What everything in a hub is made with."""

from __future__ import annotations

from dataclasses import dataclass

from toolhub_service.app.observing import Observing
from toolhub_service.app.paths import Paths
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.guards.secrets import Redactor
from toolhub_service.settings.document import Settings


@dataclass(frozen=True, slots=True)
class Means:
    settings: Settings
    paths: Paths
    clock: Clock
    randomness: Randomness
    redactor: Redactor
    observing: Observing
