"""The dependencies that all wiring functions take: settings, paths, clock, randomness, redactor, telemetry,
sandboxes."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import msgspec

from toolhub_service.aio.turns import Turns
from toolhub_service.app.certificates import LiveCertificates
from toolhub_service.app.config_files.modes import check_files, repairs, trusted_files
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.listening import listening_of, open_certificates
from toolhub_service.app.wiring.svids import Svids
from toolhub_service.app.wiring.telemetry import Observing, open_observing
from toolhub_service.domain.ports import Clock, Randomness
from toolhub_service.domain.source import ResourceNews
from toolhub_service.guards.secrets import Redactor
from toolhub_service.sandbox.ladder import Ladder
from toolhub_service.sandbox.script_python import ScriptPython
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import known_secrets
from toolhub_service.telemetry import names


class SystemClock:
    """`monotonic_s` is the clock of the asyncio loop; `unix_ms` the wall clock."""

    monotonic_s = staticmethod(time.monotonic)

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandomness:
    """Jitter from a fast generator, ids from the kernel."""

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)  # noqa: S311 - jitter, not a secret

    def token_hex(self, size_bytes: int) -> str:
        return os.urandom(size_bytes).hex()


class Deps(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    paths: Paths
    clock: Clock
    randomness: Randomness
    redactor: Redactor
    observing: Observing
    ladder: Ladder
    script_python: ScriptPython
    certificates: LiveCertificates = msgspec.field(default_factory=LiveCertificates)
    svids: Svids | None = None
    """The Workload API's follower; None: certificates come from files only."""
    resource_news: ResourceNews = msgspec.field(default_factory=ResourceNews)
    turns: Turns = msgspec.field(default_factory=Turns)


def make_deps(settings: Settings, *, is_worker: bool) -> Deps:
    """Build the dependencies.

    Raises OSError when the data folder cannot be made, and before that ListenRefused and FilesLoose.
    """
    certificates = open_certificates(settings)
    # Before any file is made: a hub that may not listen as configured leaves no files behind.
    listening_of(settings, certificates)
    check_files(settings)
    paths = Paths(settings)
    paths.make()
    redactor = Redactor(known_secrets(settings, os.environ))
    observing = open_observing(settings, redactor, is_worker=is_worker)
    if settings.loose_files == "warn":
        observing.files_loose(repairs(settings))
    observing.certificates_in_force(certificates.validities)
    clock, randomness, ladder = SystemClock(), SystemRandomness(), make_ladder(settings)
    endpoint = settings.auth.spiffe.workload_api
    svids = Svids(endpoint, certificates, observing, clock, randomness) if endpoint else None
    turns = Turns(settings.server.max_in_flight, observing.metrics.family(names.TURN_WAIT).observe)
    return Deps(
        settings=settings,
        paths=paths,
        clock=clock,
        randomness=randomness,
        redactor=redactor,
        observing=observing,
        ladder=ladder,
        script_python=ScriptPython(ladder, settings.skills.python, on_problem=observing.scripts_cannot_start),
        certificates=certificates,
        svids=svids,
        turns=turns,
    )


def make_ladder(settings: Settings) -> Ladder:
    """Return the ladder; one for a hub is enough, as it tries the levels once."""
    paths = Paths(settings)
    return Ladder(
        own_files(settings),
        shown=[str(paths.workspaces)],
        user=settings.sandbox.user,
        bubblewrap=paths.bubblewrap,
        reserve_bytes=settings.storage.reserve_bytes,
    )


def own_files(settings: Settings) -> tuple[str, ...]:
    """Return the data folder, and every file outside of it that decides over calls or holds a secret."""
    named = os.environ.get("TOOLHUB_CONFIG", "")
    files = trusted_files(settings, Path(named) if named else None)
    # Published CA certificates are in /usr, and are no secret.
    within = [str(file) for file in files if not str(file.resolve()).startswith("/usr/")]
    return (str(Paths(settings).data_dir), *within)
