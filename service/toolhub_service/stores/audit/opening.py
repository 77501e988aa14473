"""Whether the files of an audit log belong together: refused when a log is opened, and found by `check_log` before.

Key, checkpoints and events are made together, so that one without the others shows that something was removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolhub_service.stores.audit.checkpoint import read_lines
from toolhub_service.stores.audit.events import EventStore, tampering_error
from toolhub_service.stores.audit.keyring import Keyring, open_keyring
from toolhub_service.stores.audit.sqlite import SqliteEvents
from toolhub_service.stores.audit.verify import attest_events


def has_begun(events: EventStore, checkpoints: Path, key: Path) -> bool:
    """Return whether a log was begun under these names, so that its tables must be there."""
    # The key is looked for first, because another worker may make the tables of a log before its key. A checkpoint
    # line without a key also shows that tables were made: both may have been removed together.
    return (events.is_made_with_key and key.exists()) or bool(read_lines(checkpoints))


def keyring_of(
    events: EventStore,
    checkpoints: Path,
    key: Path,
    *,
    is_empty: bool,
    lines: Sequence[bytes],
    begins: bool = False,
) -> Keyring:
    """Return the keys of a log whose files belong together; make the first key of a new log.

    `is_empty`: the tables hold no event; `lines`: the checkpoints, read before that was found out; `begins`: a new log
    under an old key. Raises HubFailure AUDIT_LOG_CHANGED, and what `open_keyring` raises.
    """
    attested = lines or read_lines(checkpoints)  # another worker may have begun in between
    if not (attested or begins or is_empty) and events.is_made_with_key:
        raise tampering_error(f"The audit log's checkpoint file {checkpoints} is gone, yet there are events")
    if begins and not is_empty:
        raise tampering_error("The audit log's tables hold events, so that no log can begin in them")
    keyring = open_keyring(key, create=is_empty and not lines)
    if is_empty and attest_events(lines, keyring):
        raise tampering_error(f"The audit log holds no event, yet {checkpoints} attests some")
    return keyring


def check_log(events: SqliteEvents, checkpoints: Path, key: Path) -> None:
    """Raise what opening the log would raise, without changing a byte; a running hub may write meanwhile.

    Raises HubFailure AUDIT_LOG_CHANGED, what `open_keyring` raises, and `events.errors`.
    """
    has_log, lines = has_begun(events, checkpoints, key), read_lines(checkpoints)
    if not has_log and not events.has_tables():
        return  # a first start makes them
    is_empty = events.check_tables()
    if has_log or not is_empty:
        keyring_of(events, checkpoints, key, is_empty=is_empty, lines=lines)
