"""Checks that nobody else can write files that decide over calls (policy, keys, sources, databases), or their folders.

As in sshd (StrictModes, sshd_config(5)), a file that group or others may write is refused, and so is a file in a folder
that they may write, because there it can be replaced. In a sticky folder such as /tmp only owners can do that; on a
read-only mount, as Kubernetes mounts its ConfigMaps and Secrets, nobody can. A group whose only member is the hub's
user may write folders, as a pod's fsGroup does.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from toolhub_service.app.config_files.paths import Paths
from toolhub_service.app.config_files.sources_file import named_files, read_sources
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_AT_ALL = 0o077


class FilesLoose(ValueError):
    """Others may write files that the hub trusts; the message has the commands that repair it, one a line."""


def check_files(settings: Settings, config_file: Path | None = None) -> None:
    """Raise FilesLoose, unless the setting `loose_files` only asks for a warning."""
    if settings.loose_files == "refuse" and (commands := repairs(settings, config_file)):
        raise FilesLoose(_message(commands))


def problem_of(path: Path, settings: Settings) -> str:
    """Return why a file must not be read while the hub runs; empty when it may."""
    commands = list(_repairs_of([path])) if settings.loose_files == "refuse" else []
    return _message(commands) if commands else ""


def repairs(settings: Settings, config_file: Path | None = None) -> list[str]:
    """Return the commands that would repair loose modes, one for each file and folder."""
    own = (Paths(settings).plan_key, Paths(settings).credentials_key, Paths(settings).backup_key)
    state_key = Path(settings.server.mcp.state_key_file).expanduser()
    exposed = [command for key in (*own, state_key) for command in _read_by_others(key)]
    return [*_repairs_of(trusted_files(settings, config_file)), *exposed]


def trusted_files(settings: Settings, config_file: Path | None = None) -> list[Path]:
    """Return the files that decide over calls or hold a secret, existing or not; `artifacts` is a folder."""
    paths = Paths(settings)
    trusted = [config_file] if config_file is not None else []
    trusted += [paths.policy, paths.api_keys, paths.sources, paths.artifacts]
    trusted += [paths.audit_checkpoints, paths.audit_key, paths.plan_key, paths.credentials_key, paths.backup_key]
    databases = (paths.audit, paths.stores, paths.memory)
    trusted += [path.with_name(path.name + end) for path in databases for end in ("", "-wal", "-shm")]
    tls = settings.server.tls
    bundles = [domain.bundle_file for domain in settings.auth.spiffe.trust_domains]
    named = (tls.certificate_file, tls.key_file, tls.client_ca_file, *bundles, settings.policy.shadow_file)
    secrets = (settings.approvals.webhook_secret_file, settings.server.mcp.state_key_file)
    trusted += [Path(file).expanduser() for file in (*named, *secrets) if file]
    trusted += [Path(key.file).expanduser() for key in settings.credentials.keys if key.file]
    return [*trusted, *_of_sources(paths.sources)]


def _message(commands: Iterable[str]) -> str:
    lines = "\n".join(f"  {command}" for command in commands)
    return f"others may write what this hub trusts (loose_files: warn would let it). Type this, and try again:\n{lines}"


def _of_sources(file: Path) -> list[Path]:
    """Return the files that sources.yaml names; an invalid sources.yaml is reported elsewhere."""
    try:
        return [Path(named) for named in named_files(read_sources(file))]
    except SettingsInvalid:
        return []


def _repairs_of(files: Iterable[Path]) -> Iterator[str]:
    seen: set[Path] = set()
    for file in files:
        for place in _places(file):
            if place not in seen:
                seen.add(place)
                yield from _repair(place)


def _places(file: Path) -> Iterator[Path]:
    """Yield the file, the target of its links, and every folder on both paths."""
    path = file.absolute()
    real = path.resolve()
    yield real
    yield from real.parents
    # Also of the path as written: anyone who can write a folder with a link in it can redirect the link.
    yield from path.parents


def _repair(place: Path) -> Iterator[str]:
    try:
        status = place.stat()
        # Nobody can write there whatever the mode says, as in Kubernetes' volumes of secrets.
        if os.statvfs(place).f_flag & os.ST_RDONLY:
            return
    except OSError:
        return  # missing, or not accessible: opening it reports that
    is_folder = stat.S_ISDIR(status.st_mode)
    loose = status.st_mode & _OTHERS_WRITE
    # Sticky, as /tmp is: others may add files, but not rename or remove those of the owner.
    if is_folder and status.st_mode & stat.S_ISVTX:
        return
    # Where each user has their own group, umask 002 is usual and gives nobody else access.
    if is_folder and loose == stat.S_IWGRP and _is_private(status.st_gid):
        return
    if loose:
        yield f"chmod go-w {shlex.quote(str(place))}"


def _read_by_others(key: Path) -> Iterator[str]:
    """Anyone who reads the key of plans can forge a plan that was never shown; the same holds for the state of MCP
    clients."""
    try:
        if key.is_file() and key.stat().st_mode & _OTHERS_AT_ALL & ~_OTHERS_WRITE:
            yield f"chmod 600 {shlex.quote(str(key))}"
    except OSError:
        return


@lru_cache(maxsize=64)
def _is_private(group: int) -> bool:
    """Return whether the hub's user is the group's only member, by name or as their own group."""
    user = os.geteuid()
    try:
        members = set(grp.getgrgid(group).gr_mem)
    except KeyError:  # a number without a name, as in a container
        members = set()
    people = pwd.getpwall()
    own = {person.pw_name for person in people if person.pw_uid == user}
    return members <= own and all(person.pw_uid == user for person in people if person.pw_gid == group)
