"""`toolhub keys …`: create, replace and revoke API keys in the key file, which a running hub reloads within seconds."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolhub_service.cli.config import read_settings, settings_options
from toolhub_service.cli.root import SuggestingGroup
from toolhub_service.cli.terminal.output import (
    explaining,
    footnote,
    note,
    print_json,
    print_line,
    print_table,
    span,
    text_option,
    wants_json,
)

if TYPE_CHECKING:
    from toolhub_service.app.config_files.key_file import Wanted
    from toolhub_service.identity.api_keys import StoredKey
    from toolhub_service.settings.document import Settings

_UNITS_S = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
_LIFE_MAX_S = 10 * 366 * 86_400
_ROLES = ("agent", "operator", "approver", "auditor")


class _Span(click.ParamType[int]):
    """A number with m, h, d or w: seconds, at least `least_s`."""

    name = "span"

    def __init__(self, least_s: int = 0) -> None:
        self._least_s = least_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,6})([mhdw])", str(value))
        size_s = int(found[1]) * _UNITS_S[found[2]] if found else -1
        if not 0 <= size_s <= _LIFE_MAX_S:
            self.fail(f"{str(value)!r} is no span of time: write 30m, 24h, 90d or 52w, at most ten years.")
        if size_s < self._least_s:
            self.fail(f"{value}: it must be at least 1m.")
        return size_s


def _expires_option(command: Any) -> Any:
    help_text = "How long it is accepted, such as 90d; also m, h and w."
    return click.option("--expires", "life_s", type=_Span(60), metavar="SPAN", help=help_text)(command)


def _out_option(command: Any) -> Any:
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="Write the key to this new file (mode 0600) instead of printing it; an existing file is not overwritten.",
    )(command)


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Create, list, replace and revoke API keys."""


class _Role(click.Choice[str]):
    """One role. Several in one word are answered with how to write them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if "," in str(value):
            self.fail(f"one role at a time: {_advice_to_repeat('--roles', str(value))}", param, ctx)
        return super().convert(value, param, ctx)


def _advice_to_repeat(option: str, value: str) -> str:
    return "repeat the option, " + " ".join(f"{option} {each.strip()}" for each in value.split(",") if each.strip())


@keys.command()
@click.argument("name")
@_expires_option
@click.option(
    "--capabilities",
    multiple=True,
    metavar="GLOB",
    help="The only capabilities, of those that the policy grants NAME; can be repeated.",
)
@click.option(
    "--roles",
    multiple=True,
    type=_Role(_ROLES),
    help="The only roles, of those that the policy gives NAME; can be repeated.",
)
@click.option(
    "--tenant", default="", help="The tenant it is for. Where the policy has tenants, it must be that of NAME."
)
@_out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def create(
    name: str,
    life_s: int | None,
    capabilities: tuple[str, ...],
    roles: tuple[str, ...],
    tenant: str,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a key for the principal NAME. It is printed once; only its hash is stored.

    The policy says what the principal may do; --capabilities and --roles narrow that for this key, and add nothing. The
    hub accepts keys when the setting auth.modes includes api-key, as it does by default.

    \b
    Examples:
      toolhub keys create research-agent
      toolhub keys create ci --expires 90d --capabilities 'read:*' --roles agent --out ci.key
    """
    _check_name(name)
    from toolhub_service.app.config_files.key_file import KeyFileInvalid
    from toolhub_service.app.config_files.paths import Paths

    settings = read_settings(**options)
    file = Paths(settings).key_file()
    wanted = _read_properties(life_s, capabilities, roles, tenant)
    with explaining(OSError, KeyFileInvalid):
        former = [key_id for key_id, stored in file.read().items() if stored.name == name and not stored.replaced_by]
        with _open_key_file(out) as keep:
            key = file.create(name, wanted)
            keep(key)
    _show_key(name, key, out, as_json=as_json)
    note(f"What {name!r} may do is in policy.yaml, under grants and roles.", err=True)
    if "api-key" not in settings.auth.modes:
        note("This configuration accepts no API keys: add api-key to auth.modes.", err=True)
    else:
        note(_reload_note(settings, "accepts it"), err=True)
    if former:
        note(f"{name!r} now has {len(former) + 1} keys. To revoke an older one:", err=True)
        for key_id in former:
            note(f"  toolhub keys revoke {key_id}", err=True)


def _check_name(name: str) -> None:
    """Check the name. Raises click.UsageError."""
    if not name or not name.isprintable() or any(map(str.isspace, name)):
        # str.isprintable accepts the space, and no other white space.
        raise click.UsageError(
            f"{name!r} cannot be the name of a principal: it must have no spaces and no control characters. "
            "Use letters, digits and signs such as - _ . @, as in research-agent."
        )
    # In the policy such a name would be a selector, and match others or nobody.
    if "*" in name or name.startswith(("group:", "issuer:", "actor:")):
        raise click.UsageError(f"{name!r} would mean others in policy.yaml: choose a name without * or group:.")


def _read_properties(life_s: int | None, capabilities: tuple[str, ...], roles: tuple[str, ...], tenant: str) -> Wanted:
    """Return the properties. Raises click.UsageError."""
    from toolhub_service.app.config_files.key_file import Wanted
    from toolhub_service.domain.call import Role

    for glob in capabilities:
        if "," in glob:
            raise click.UsageError(f"--capabilities takes one at a time: {_advice_to_repeat('--capabilities', glob)}")
        if not re.fullmatch(r"[\x21-\x7e]{1,255}", glob):
            raise click.UsageError(f"--capabilities {glob!r}: write one such as read:fs, read:* or *.")
    if tenant and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", tenant):
        raise click.UsageError(f"--tenant {tenant!r}: use up to 64 letters, digits and . _ -")
    return Wanted(
        expires_s=None if life_s is None else int(time.time()) + life_s,
        roles=frozenset(map(Role, roles)) if roles else None,
        capabilities=frozenset(capabilities) if capabilities else None,
        tenant=tenant,
    )


@contextmanager
def _open_key_file(out: Path | None) -> Iterator[Any]:
    """Yield a function that writes the key to the new file, which is created first and removed if there is no key.

    Raises click.UsageError when there is a file, OSError when none can be made.
    """
    if out is None:
        yield len  # no file is wanted
        return
    try:
        # Opened before the key is made: a key that cannot be written down would be usable by nobody.
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise click.UsageError(f"--out {out}: there is such a file. Move it away, or name another one.") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:

        def keep(key: str) -> None:
            file.write(f"{key}\n")
            file.flush()
            # Only its hash is stored: if a power cut loses this file, the key is lost.
            os.fsync(file.fileno())

        try:
            yield keep
        except BaseException:
            # The original failure is what counts.
            with suppress(OSError):
                out.unlink()
            raise


def _show_key(name: str, key: str, out: Path | None, *, as_json: bool, **more: str) -> None:
    if as_json:
        print_json({"name": name, **({"file": str(out)} if out else {"key": key}), **more})
        return
    if out is None:
        print_line(key)
        note(f"API key of {name!r}. Save it now: only its hash is stored.", err=True)
    else:
        print_line(f"The API key of {name!r} is in {out!s}, for your user alone.")


@keys.command("list")
@text_option
@settings_options
def list_keys(as_json: bool, **options: Any) -> None:
    """List the keys: when each was created, was last used and expires, and how it narrows rights.

    The last use is that at the hubs of this data folder, to five minutes.

    \b
    Example:
      toolhub keys list
    """
    from toolhub_service.app.config_files.key_file import KeyFileInvalid, KeyUses
    from toolhub_service.app.config_files.paths import Paths

    paths = Paths(read_settings(**options))
    with explaining(OSError, KeyFileInvalid):
        found = paths.key_file().read()
    uses = KeyUses(paths.api_key_uses).read()
    if wants_json(as_json):
        print_json([_record(key_id, stored, uses.get(key_id)) for key_id, stored in found.items()])
    elif not found:
        footnote("There are no keys. `toolhub keys create NAME` creates one.")
    else:
        head = ("KEY", "PRINCIPAL", "CREATED", "LAST USED", "EXPIRES", "SCOPE")
        print_table(head, [_row(key_id, stored, uses.get(key_id)) for key_id, stored in found.items()])


def _record(key_id: str, key: StoredKey, used_s: int | None) -> dict[str, Any]:
    moments = {"created": key.created_s, "lastUsed": used_s, "expires": key.expires_s}
    lists = {
        "roles": None if key.roles is None else sorted(role.value for role in key.roles),
        "capabilities": None if key.capabilities is None else sorted(key.capabilities),
    }
    record = {"id": key_id, "name": key.name, **{name: at and _iso(at) for name, at in moments.items()}, **lists}
    record |= {"tenant": key.tenant or None, "replacedBy": key.replaced_by or None}
    return {name: value for name, value in record.items() if value is not None}


def _iso(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _row(key_id: str, key: StoredKey, used_s: int | None) -> tuple[str, ...]:
    now_s = time.time()
    used = "–" if used_s is None else f"{span(now_s - used_s)} ago"
    scope = [*sorted(role.value for role in key.roles or ()), *sorted(key.capabilities or ())]
    scope += [f"tenant {key.tenant}"] if key.tenant else []
    created = "–" if key.created_s is None else _iso(key.created_s)[:10]
    return key_id, key.name, created, used, _until(key, now_s), ", ".join(scope) or "–"


def _until(key: StoredKey, now_s: float) -> str:
    if key.expires_s is None:
        return "never"
    when = f"expired {_iso(key.expires_s)[:10]}" if key.has_expired(now_s) else f"in {span(key.expires_s - now_s)}"
    return f"{when}, replaced by {key.replaced_by}" if key.replaced_by else when


@keys.command()
@click.argument("key")
@click.option(
    "--overlap",
    "overlap_s",
    type=_Span(),
    default="24h",
    show_default=True,
    metavar="SPAN",
    help="How long the old key stays accepted; 0m: it ends at once.",
)
@_expires_option
@_out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def rotate(key: str, overlap_s: int, life_s: int | None, out: Path | None, as_json: bool, **options: Any) -> None:
    """Replace KEY by a new one. KEY is an ID from `toolhub keys list`, or a principal that has one key.

    The new key has the principal, the scope and the lifetime of the old one; --expires gives it another lifetime. The
    old one is accepted until the overlap ends.

    \b
    Examples:
      toolhub keys rotate ci --out ci.new.key
      toolhub keys rotate thk_1a2b3c4d --overlap 1h
    """
    from toolhub_service.app.config_files.key_file import KeyFileInvalid, RotationRefused
    from toolhub_service.app.config_files.paths import Paths

    settings = read_settings(**options)
    file = Paths(settings).key_file()
    expires_s = None if life_s is None else int(time.time()) + life_s
    with explaining(OSError, KeyFileInvalid, RotationRefused), _open_key_file(out) as keep:
        rotated = file.rotate(key, overlap_s, expires_s)
        if rotated is None:
            raise click.ClickException(f"There is no key {key}. `toolhub keys list` shows all keys.")
        keep(rotated.key)
    _show_key(rotated.name, rotated.key, out, as_json=as_json, replaces=rotated.old_id)
    if overlap_s:
        note(f"{rotated.old_id} is accepted for {span(overlap_s)} longer, if it has not expired by then.", err=True)
    else:
        note(f"{rotated.old_id} has ended. {_reload_note(settings, 'refuses it')}", err=True)


@keys.command()
@click.argument("key")
@settings_options
def revoke(key: str, **options: Any) -> None:
    """Revoke a key, or all of a principal. KEY is an ID from `toolhub keys list`, or the principal.

    \b
    Examples:
      toolhub keys revoke thk_1a2b3c4d
      toolhub keys revoke ci
    """
    from toolhub_service.app.config_files.key_file import KeyFileInvalid
    from toolhub_service.app.config_files.paths import Paths

    settings = read_settings(**options)
    file = Paths(settings).key_file()
    with explaining(OSError, KeyFileInvalid):
        gone = file.revoke_all(_ids_of(file.read(), key))
    if not gone:
        raise click.ClickException(f"There is no key {key}. `toolhub keys list` shows all keys.")
    refuses = "refuses it" if len(gone) == 1 else "refuses them"
    print_line(f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} revoked. {_reload_note(settings, refuses)}")


def _ids_of(stored: Mapping[str, StoredKey], key: str) -> list[str]:
    return [key] if key in stored else [key_id for key_id, each in stored.items() if each.name == key]


def _reload_note(settings: Settings, what: str) -> str:
    reload_s = settings.policy.reload_s
    when = f"within {reload_s:g} seconds" if reload_s else "on SIGHUP"
    return f"A running hub {what} {when}."
