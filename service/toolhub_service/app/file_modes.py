"""May somebody else write what decides over everybody: policy, keys, sources, databases, or a folder above them?

As sshd does (StrictModes, sshd_config(5)): what group or others may write is refused, and so is a file in a folder that
they may write, for there it can be replaced. A sticky folder such as /tmp lets only owners do that; on a mount that is
read-only, as Kubernetes mounts its ConfigMaps and Secrets, nobody writes. A group that has no member but the hub's user
may write folders, for so does the fsGroup of a pod.
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

from toolhub_service.app.paths import Paths
from toolhub_service.app.sources_file import named_files, read_sources
from toolhub_service.settings.document import Settings
from toolhub_service.settings.loading import SettingsInvalid

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_AT_ALL = 0o077


class FilesLoose(ValueError):
    """Others may write what the hub trusts; the message has the commands that put it right, one a line."""


def check_files(settings: Settings, config_file: Path | None = None) -> None:
    """Raises FilesLoose, unless the setting `loose_files` says to warn only."""
    if settings.loose_files == "refuse" and (commands := repairs(settings, config_file)):
        raise FilesLoose(_message(commands))


def problem_of(path: Path, settings: Settings) -> str:
    """Why one file must not be read while the hub runs; empty: it may."""
    commands = list(_repairs_of([path])) if settings.loose_files == "refuse" else []
    return _message(commands) if commands else ""


def repairs(settings: Settings, config_file: Path | None = None) -> list[str]:
    """The commands that would put right what is loose, one for each file and folder."""
    own = (Paths(settings).plan_key, Paths(settings).credentials_key, Paths(settings).backup_key)
    state_key = Path(settings.server.mcp.state_key_file).expanduser()
    exposed = [command for key in (*own, state_key) for command in _read_by_others(key)]
    return [*_repairs_of(trusted_files(settings, config_file)), *exposed]


def trusted_files(settings: Settings, config_file: Path | None = None) -> list[Path]:
    """What decides over calls or holds a secret, there or not; `artifacts` is a folder."""
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
    """What sources.yaml names; a file that is not valid is reported elsewhere."""
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
    """The file, what it links to, and every folder on both ways."""
    path = file.absolute()
    real = path.resolve()
    yield real
    yield from real.parents
    # Of the path as it is written, too: who can write a folder with a link in it can point it elsewhere.
    yield from path.parents


def _repair(place: Path) -> Iterator[str]:
    try:
        status = place.stat()
        # Nobody can write there whatever the mode says, as with volumes of Kubernetes' secrets.
        if os.statvfs(place).f_flag & os.ST_RDONLY:
            return
    except OSError:
        return  # not there, or not to be looked at: whoever opens it says so
    is_folder = stat.S_ISDIR(status.st_mode)
    loose = status.st_mode & _OTHERS_WRITE
    # Sticky, as /tmp is: others may add files, and neither rename nor remove those of the owner.
    if is_folder and status.st_mode & stat.S_ISVTX:
        return
    # Where each user has a group of their own, umask 002 is usual and lets nobody else in.
    if is_folder and loose == stat.S_IWGRP and _is_private(status.st_gid):
        return
    if loose:
        yield f"chmod go-w {shlex.quote(str(place))}"


def _read_by_others(key: Path) -> Iterator[str]:
    """Whoever reads the key of plans can make a plan that was never shown; likewise what MCP clients bring back."""
    try:
        if key.is_file() and key.stat().st_mode & _OTHERS_AT_ALL & ~_OTHERS_WRITE:
            yield f"chmod 600 {shlex.quote(str(key))}"
    except OSError:
        return


@lru_cache(maxsize=64)
def _is_private(group: int) -> bool:
    """Whether nobody but the hub's user is in the group, by name or as their own group."""
    user = os.geteuid()
    try:
        members = set(grp.getgrgid(group).gr_mem)
    except KeyError:  # a number without a name, as in a container
        members = set()
    people = pwd.getpwall()
    own = {person.pw_name for person in people if person.pw_uid == user}
    return members <= own and all(person.pw_uid == user for person in people if person.pw_gid == group)
