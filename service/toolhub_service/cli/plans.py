"""Short names of the plans that this user's dry runs have printed: a digest has 300 characters, which nobody types.

The names are this machine's own. The hub knows digests only, and so does everything that is printed as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import click

from toolhub_service.app.config_files.editing import lock_for_edit, replace_text

_PREFIX = "plan_"
_NAME = re.compile(r"plan_[0-9a-f]{8}")
_NAME_CHARS = 8
_KEPT_MAX = 200


def remember_plan(digest: str, expires_at_unix_s: float) -> str:
    """Return a name for the digest until it expires; the digest itself where no file can be kept."""
    name = _PREFIX + hashlib.sha256(digest.encode()).hexdigest()[:_NAME_CHARS]
    path = plans_file()
    try:
        with lock_for_edit(path):
            known = {key: plan for key, plan in _read_plans(path).items() if plan["expires_at_unix_s"] > time.time()}
            newest = sorted(known.items(), key=lambda each: each[1]["expires_at_unix_s"])[-_KEPT_MAX:]
            plan = {"digest": digest, "expires_at_unix_s": expires_at_unix_s}
            replace_text(path, json.dumps({**dict(newest), name: plan}))
    except OSError:
        return digest
    return name


def whole_digest(_: click.Context, __: click.Parameter, given: str) -> str:
    """The callback of --plan: return the digest of a name; any other text as it is. Raises BadParameter."""
    if not _NAME.fullmatch(given):
        return given
    if plan := _read_plans(plans_file()).get(given):
        return str(plan["digest"])
    raise click.BadParameter(
        f"no dry run of this user on this machine has printed {given} within its time. Run the command again with "
        "--dry-run, or give the plan's digest."
    )


def plans_file() -> Path:
    """Return where names are kept (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "toolhub" / "plans.json"


def _read_plans(path: Path) -> dict[str, Any]:
    """Return the plans by name; none where the file is missing or not what `remember_plan` writes."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    plans = found.items() if isinstance(found, dict) else ()
    return {
        name: plan for name, plan in plans if isinstance(plan, dict) and {"digest", "expires_at_unix_s"} <= plan.keys()
    }
