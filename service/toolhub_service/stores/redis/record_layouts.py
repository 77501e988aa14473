"""How the records of the first tables are stored in Redis: approvals, artifacts, pins and kept inner calls.

Later tables are declared by their columns: see `derived_layout.py`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from toolhub_service.schema.canonical_json import dumps
from toolhub_service.stores.record_store import (
    OPEN_STATES,
    Row,
)
from toolhub_service.stores.redis.pages import AT_DIGITS
from toolhub_service.stores.redis.record_scripts import Layout


def _binding_digest(row: Row) -> str:
    return hashlib.sha256(dumps(json.loads(row["binding"]))).hexdigest()


APPROVAL_LAYOUT: Final = Layout(
    kind="approval",
    stored=("state", "binding", "principal", "tool"),
    others=("requested", "expires"),
    fields=lambda row: (
        row["state"],
        _binding_digest(row),
        row["principal"],
        row["tool"],
        row["requested_at_unix_ms"],
        row["expires_at_unix_ms"],
    ),
    places=f"""
local OPEN = {{{", ".join(f"{state.value} = true" for state in OPEN_STATES)}}}
local function places(id, row)
  local all, own = {{'approvals', row.requested, id}}, {{'approvals:of:' .. row.principal, row.requested, id}}
  local by_expiry = {{OPEN[row.state] and 'approvals:open' or 'approvals:ended', row.expires, id}}
  return {{all, own, by_expiry}}, OPEN[row.state] and 'approvals:binding:' .. row.binding
end
""",
    lists={"": "approvals", "principal": "approvals:of:"},
    has_feed=True,
    found=lambda _, facts: dict(zip(("state", "binding", "principal", "tool"), facts, strict=True)),
)
ARTIFACT_LAYOUT: Final = Layout(
    kind="artifact",
    stored=("sha256", "principal", "size"),
    others=("expires",),
    fields=lambda row: (row["sha256"], row["principal"], row["size_bytes"], row["expires_at_unix_ms"]),
    places="""
local function places(id, row)
  return {{'artifacts:expiry', row.expires, id}}
end
""",
    lists={"": "artifacts:expiry"},
    shared="sha256",
    total=("principal", "size"),
    found=lambda _, facts: dict(zip(("sha256", "principal", "size_bytes"), facts, strict=True)),
)
PIN_LAYOUT: Final = Layout(
    kind="pin",
    stored=("state", "at"),
    fields=lambda row: (row["state"], f"{row['seen_at_unix_ms']:0{AT_DIGITS}d}"),
    places="""
local function places(name, row)
  local member = row.at .. ' ' .. name
  return {{'pins', 0, member}, {'pins:of:' .. string.match(name, '^[^ ]+'), 0, member}}
end
""",
    lists={"": "pins", "source": "pins:of:"},
    has_revision=True,
    by_member=True,
    found=lambda name, facts: {"source": name.split(" ")[0], "tool": name.split(" ")[1], "state": facts[0]},
)


INNER_CALL_LAYOUT: Final = Layout(
    kind="inner_call",
    stored=("job",),
    others=("expires",),
    fields=lambda row: (row["job_id"], row["expires_at_unix_ms"]),
    places="""
local function places(name, row)
  return {{'inner_calls:expiry', row.expires, name}, {'inner_calls:of:' .. row.job, 0, name}}
end
""",
    lists={"": "inner_calls:expiry", "job_id": "inner_calls:of:"},
    found=lambda _, facts: {"job_id": facts[0]},
)
