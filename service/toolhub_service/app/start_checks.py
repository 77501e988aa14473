"""Every reason for which a hub does not start, and the check that finds it without starting.

Each check calls what a start calls at that place, or what both call, so that it raises the same exception, which
`start_refusal` words. None makes or changes a file, and none listens.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from toolhub_service.app.config_files.editing import SecretFileInvalid, read_key
from toolhub_service.app.config_files.key_file import KeyFileInvalid
from toolhub_service.app.config_files.modes import problem_of
from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.listening import SVID_DOCTOR_S, ListenRefused, listening_of, open_certificates
from toolhub_service.app.start_refusals import StartRefused, load_first_policy
from toolhub_service.app.wiring.audit import check_exports
from toolhub_service.app.wiring.calls import check_engine, webhook_secret
from toolhub_service.app.wiring.credentials import check_hosts, named_keys
from toolhub_service.app.wiring.deps import SystemRandomness
from toolhub_service.app.wiring.identity import check_credentials
from toolhub_service.app.wiring.mcp import given_state_key
from toolhub_service.app.wiring.server import make_policy_file, make_sources_file
from toolhub_service.app.wiring.stores import bucket_named, check_stores, not_installed
from toolhub_service.app.wiring.tools import embedder_of
from toolhub_service.domain.errors.failure import ErrorKind, ToolFailure, refuse
from toolhub_service.domain.errors.spec import HubReason, StartReason
from toolhub_service.policy.live import LivePolicy
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid
from toolhub_service.stores.audit.opening import check_log
from toolhub_service.stores.audit.sqlite import SqliteEvents, connect_to_look
from toolhub_service.stores.blobs.disk import as_tool_failures
from toolhub_service.stores.sqlite.file import opening
from toolhub_service.stores.sqlite.migrations import MIGRATIONS
from toolhub_service.stores.sqlite.writer import FileTooNew

_SERVER_S: Final = 3.0
_MODULES: Final = {"redis": "redis", "postgres": "psycopg", "docket": "docket"}
"""By extra: the package without which a store or an engine cannot be opened."""


class StartCheck(NamedTuple):
    name: str
    """The subject, as `toolhub doctor` names it."""
    refusals: frozenset[HubReason | type[Exception]]
    """What it can raise: the reason of a HubFailure, or the class."""
    check: Callable[[Settings], Awaitable[None]]
    advice: str = "`toolhub serve` refuses to start until then."
    """What to do where the refusal itself only says what is wrong."""


# Reasons that only a start meets, and why.
SEEN_BY_STARTING: Final = {
    StartReason.METRICS_NOT_SHARED: "a supervisor sets the variable, for its workers alone",
}


async def _data_folder(settings: Settings) -> None:
    _check_folder(Paths(settings).data_dir)


async def _listening(settings: Settings) -> None:
    listening_of(settings, open_certificates(settings, SVID_DOCTOR_S))
    check_credentials(settings)
    Paths(settings).key_file().read()


async def _tracing(settings: Settings) -> None:
    if settings.tracing.otlp_endpoint:
        from toolhub_service.telemetry.span_recording import exporter_class

        exporter_class()


async def _audit_log(settings: Settings) -> None:
    """The log in PostgreSQL is left to the start: only its key and checkpoints are here."""
    if settings.stores.postgres_url:
        return
    paths = Paths(settings)
    events = SqliteEvents(paths.audit, only_looks=True)
    try:
        for file in (paths.audit, paths.audit_checkpoints):
            _check_writable(file)
        check_log(events, paths.audit_checkpoints, paths.audit_key)
    except events.errors as error:
        raise refuse(ErrorKind.IO_ERROR, "The audit log cannot be written.", component="audit") from error


async def _stores(settings: Settings) -> None:
    check_stores(settings)
    check_engine(settings)
    wanted = {
        "stores.redis_url": (bool(settings.stores.redis_url), "redis"),
        "stores.postgres_url": (bool(settings.stores.postgres_url), "postgres"),
        "jobs.engine docket": (settings.jobs.engine == "docket", "docket"),
    }
    for setting, (is_set, extra) in wanted.items():
        if is_set and not _has_extra(extra):
            raise not_installed(setting, extra)


async def _own_store(settings: Settings) -> None:
    if settings.stores.redis_url or settings.stores.kind != "sqlite":
        return
    path = Paths(settings).stores
    with opening(path):
        if path.is_dir():
            raise _error(errno.EISDIR, path)
        _check_writable(path)
        if path.exists() and (version := _layout_of(path)) > len(MIGRATIONS):
            raise FileTooNew(f"it has version {version}, and this hub knows {len(MIGRATIONS)}")


async def _redis(settings: Settings) -> None:
    if not settings.stores.redis_url or not _has_extra("redis"):
        return
    from toolhub_service.stores.redis.link import RedisLink

    link = RedisLink(settings.stores.redis_url, SystemRandomness(), patience_s=_SERVER_S)
    try:
        await link.start()
    finally:
        await link.close()


async def _postgres(settings: Settings) -> None:
    if not settings.stores.postgres_url or not _has_extra("postgres"):
        return
    from psycopg import AsyncConnection

    from toolhub_service.stores.postgres.errors import TROUBLE, reason_of, unavailable
    from toolhub_service.stores.postgres.migrate import check_version
    from toolhub_service.stores.postgres.target import postgres_target

    target = postgres_target(settings.stores.postgres_url, application="toolhub doctor")
    try:
        async with await AsyncConnection.connect(target.conninfo, connect_timeout=int(_SERVER_S)) as connection:
            await check_version(connection)
    except TROUBLE as trouble:
        raise unavailable(reason_of(trouble), target.shown) from trouble


async def _artifacts(settings: Settings) -> None:
    if url := settings.artifacts.bucket_url:
        bucket_named("artifacts.bucket_url", url)
        return
    with as_tool_failures():
        _check_folder(Paths(settings).artifacts)


async def _exports(settings: Settings) -> None:
    check_exports(settings.audit.export)


async def _credentials(settings: Settings) -> None:
    named_keys(settings)
    check_hosts(settings)


async def _webhook(settings: Settings) -> None:
    webhook_secret(settings)


async def _search(settings: Settings) -> None:
    embedder_of(settings)


async def _plan_key(settings: Settings) -> None:
    path = Paths(settings).plan_key
    if path.exists():
        read_key(path, "remove it to have a new one made")


async def _state_key(settings: Settings) -> None:
    given_state_key(settings)


async def _policy(settings: Settings) -> None:
    if not problem_of(Paths(settings).policy, settings):  # others may write it, which `file modes` tells
        load_first_policy(make_policy_file(settings, LivePolicy()))


async def _sources(settings: Settings) -> None:
    if not problem_of(Paths(settings).sources, settings):
        make_sources_file(settings).load()


_AUDIT_KEY = (StartReason.AUDIT_KEY_MISSING, StartReason.AUDIT_KEY_EXPOSED, StartReason.AUDIT_KEY_INVALID)
_BUCKET = (StartReason.BUCKET_URL_INVALID, StartReason.BUCKET_SECRET_UNREADABLE)
_STORES = (StartReason.STORES_NOT_SHARED, StartReason.STORES_NEED_POSTGRES, StartReason.ENGINE_NEEDS_REDIS)
START_CHECKS: Final = (
    StartCheck("data folder", frozenset({OSError}), _data_folder),
    StartCheck("auth", frozenset({ListenRefused, KeyFileInvalid, OSError}), _listening),
    StartCheck("tracing", frozenset({StartReason.OTLP_EXPORTER_MISSING}), _tracing),
    StartCheck("audit log", frozenset({StartReason.AUDIT_LOG_CHANGED, *_AUDIT_KEY, ToolFailure}), _audit_log),
    StartCheck("stores", frozenset({*_STORES, StartReason.EXTRA_MISSING}), _stores),
    StartCheck("hub's store", frozenset({ToolFailure}), _own_store),
    StartCheck("redis", frozenset({StartReason.REDIS_URL_INVALID, StartReason.REDIS_EVICTS, ToolFailure}), _redis),
    StartCheck(
        "postgres", frozenset({StartReason.POSTGRES_URL_INVALID, StartReason.STORE_TOO_NEW, ToolFailure}), _postgres
    ),
    StartCheck("artifacts", frozenset({*_BUCKET, StartReason.EXTRA_MISSING, ToolFailure}), _artifacts),
    StartCheck("audit export", frozenset({*_BUCKET, StartReason.EXTRA_MISSING}), _exports),
    StartCheck("credentials", frozenset({StartReason.SEALING_KEY_UNUSABLE}), _credentials),
    StartCheck("webhook", frozenset({StartReason.WEBHOOK_INVALID}), _webhook),
    StartCheck("search", frozenset({StartReason.EMBEDDER_UNUSABLE}), _search),
    StartCheck("plan key", frozenset({SecretFileInvalid, OSError}), _plan_key),
    StartCheck("mcp state key", frozenset({SecretFileInvalid, OSError}), _state_key),
    StartCheck("policy", frozenset({StartRefused}), _policy, "Correct it, then run `toolhub policy check`."),
    StartCheck("sources", frozenset({SettingsInvalid}), _sources, "Correct it, then run `toolhub sources check`."),
)
"""In the order in which a start meets them, but for ports (`doctor/ports.py`) and modes (`config_files/modes.py`)."""


def _has_extra(extra: str) -> bool:
    return find_spec(_MODULES[extra]) is not None


def _check_folder(folder: Path) -> None:
    """Raise the OSError of making the folder, or of writing in it."""
    standing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not standing.is_dir():
        raise _error(errno.ENOTDIR if standing != folder else errno.EEXIST, folder)
    if not os.access(standing, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, folder)


def _check_writable(file: Path) -> None:
    """Raise the OSError of opening the file to write, if there is one."""
    if file.exists() and not os.access(file, os.W_OK):
        raise _error(errno.EACCES, file)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _layout_of(path: Path) -> int:
    """Return the version of the layout. Raises sqlite3.Error."""
    with closing(connect_to_look(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return int(version)
