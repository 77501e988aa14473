"""What was kept of a hub of a former version, and the settings and names that it was made with.

An archive `<version>/<backend>.tar.xz` holds `data/` (the data folder as SIGKILL left it), `policy.yaml`,
`expected.json` (what the former version itself said and read) and, of a shared backend, `redis.json` or `postgres.sql`.
"""

from __future__ import annotations

import base64
import json
import socket
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.archives import guard_extraction

FOLDER = Path(__file__).parent
BACKENDS = ("embedded", "redis", "postgres")
PRINCIPALS = ("robot", "judge", "boss")

TEXT = "The herons came back to the pond. " * 200
"""Of 6,800 bytes, so that a result is cut."""
UPLOAD = bytes(range(256)) * 40
PURPOSE = "tally herons at the pond"
ANSWER = {"name": "Ada"}
KEYS = (
    ("robot", "kept/text.write", "key-ended"),
    ("robot", "kept/text.refuse", "key-refused"),
    ("robot", "kept/text.holdEffect", "key-open"),
)
"""Principal, tool and idempotency key of calls."""
SITE = "@site@"
"""Stands in `postgres.sql` for host and path of the checkpoint file."""
LONG_S = 1e9
"""Thirty-one years: longer than these files are kept."""
POLICY = """\
extends: none
impersonate: [robot]
grants:
- principals: [robot]
  capabilities: ["mcp:papers"]
roles:
- {principals: [judge], roles: [approver]}
- {principals: [boss], roles: [operator, auditor]}
rules:
- {id: signing-needs-a-yes, effect: REQUIRE_APPROVAL, tools: [kept/text.sign], reason: A signature binds.}
- id: signing-soon-needs-a-yes
  effect: REQUIRE_APPROVAL
  tools: [kept/text.signSoon]
  reason: A signature binds.
  approval: {expires_s: 1}
"""


def tools(module: str, *, held: bool) -> dict[str, dict[str, bool]]:
    """The kept tools as custom tools of the configuration; `held`: those that can wait do."""
    plain = ("Echo", "Refuses", "Writes", "Signs", "SignsSoon", "Asks")
    waiting = ("Holds", "HoldsAnEffect", "IgnoresCancelling")
    return {
        **{f"{module}:{name}": {} for name in plain},
        **{f"{module}:{name}": {"held": held} for name in waiting},
    }


def write_settings(
    file: Path, tools: Mapping[str, Mapping[str, bool]], stores: Mapping[str, str], *, max_running: int = 100
) -> None:
    """`tools`: constructor arguments of custom tools by `package.module:Class`."""
    namespaces = sorted({path.partition(":")[0] for path in tools})
    settings: dict[str, Any] = {
        "auth": {"modes": ["api-key"]},
        "policy": {"reload_s": 0},
        "tools": {
            "trusted_namespaces": namespaces,
            "custom": [{"tool": path, "args": dict(arguments)} for path, arguments in tools.items()],
        },
        "stores": dict(stores),
        "idempotency": {"ttl_s": LONG_S},
        "jobs": {
            "max_running": max_running,
            "default_timeout_s": LONG_S,
            "max_timeout_s": LONG_S,
            "keep_s": LONG_S,
            "heartbeat_s": 0.05,
            "dead_after_s": 0.5,
        },
        "approvals": {"keep_s": LONG_S},
        "artifacts": {"ttl_s": LONG_S},
    }
    file.write_text(yaml.safe_dump(settings))


def write_sources(data_dir: Path, url: str) -> None:
    file = data_dir / "sources.yaml"
    file.touch(0o600)
    file.write_text(f"sources:\n  papers: {{url: {url}}}\n")


def definition(name: str, description: str) -> dict[str, Any]:
    """What the MCP server `papers` says of one tool."""
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


STEADY = definition("steady", "Read a paper.")
CHANGED = definition("changed", "Read a paper, and every file beside it.")
"""Another description than the one that was pinned; PENDING."""
ACCEPTED = definition("accepted", "Read a paper and its figures.")
"""Likewise, and APPROVED by a person, so that the first one is SUPERSEDED."""
REFUSED = definition("refused", "Read a paper and send it on.")
"""Added later, and REJECTED."""


def unpack(version: str, backend: str, folder: Path) -> dict[str, Any]:
    """Put the data folder and everything else that was kept below `folder`; what the former version said of it."""
    with tarfile.open(FOLDER / version / f"{backend}.tar.xz") as archive:
        guard_extraction(archive).extractall(folder)
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return expected


def pack(version: str, backend: str, folder: Path, names: Iterable[str]) -> Path:
    """The same files give the same archive: no times, no owners."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime = member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    (FOLDER / version).mkdir(exist_ok=True)
    path = FOLDER / version / f"{backend}.tar.xz"
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name in names:
            archive.add(folder / name, name, filter=anonymous)
    return path


def dump_redis(url: str) -> list[dict[str, Any]]:
    """Every key: its type, its value in Redis' own words, and when it expires."""
    import redis

    with redis.Redis.from_url(url) as client:
        return [_dumped(client, key) for key in sorted(client.scan_iter(count=1_000))]


def restore_redis(url: str, dump: Iterable[Mapping[str, Any]]) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        for entry in dump:
            key, value = _bytes(entry["key"]), _bytes(entry["value"])
            _RESTORES[entry["type"]](client, key, value)
            if entry["expires_at_unix_ms"] > 0:
                client.pexpireat(key, entry["expires_at_unix_ms"])


def _dumped(client: Any, key: bytes) -> dict[str, Any]:
    kind = client.type(key).decode()
    readers: dict[str, Callable[[], Any]] = {
        "string": lambda: client.get(key),
        "hash": lambda: [list(pair) for pair in sorted(client.hgetall(key).items())],
        "set": lambda: sorted(client.smembers(key)),
        "list": lambda: client.lrange(key, 0, -1),
        "zset": lambda: [[member, score] for member, score in client.zrange(key, 0, -1, withscores=True)],
        "stream": lambda: [
            [id, [part for pair in fields.items() for part in pair]] for id, fields in client.xrange(key)
        ],
    }
    return {
        "key": _text(key),
        "type": kind,
        "value": _text(readers[kind]()),
        "expires_at_unix_ms": client.execute_command("PEXPIRETIME", key),
    }


_RESTORES: Mapping[str, Any] = {
    "string": lambda client, key, value: client.set(key, value),
    "hash": lambda client, key, value: client.hset(key, mapping=dict(value)),
    "set": lambda client, key, value: client.sadd(key, *value),
    "list": lambda client, key, value: client.rpush(key, *value),
    "zset": lambda client, key, value: client.zadd(key, dict(value)),
    "stream": lambda client, key, value: [client.execute_command("XADD", key, id, *fields) for id, fields in value],
}


def _text(value: Any) -> Any:
    """Bytes as text that can be read where they are UTF-8, else in base64 behind a mark."""
    if isinstance(value, list):
        return [_text(item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_bytes(item) for item in value]
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return value.encode() if isinstance(value, str) else value


def restore_postgres(url: str, statements: str, data_dir: Path) -> None:
    """The copies of its checkpoints name the file that they were taken from: that of `data_dir` from now on."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statements.replace(SITE, site(data_dir)).encode())


def site(data_dir: Path) -> str:
    return f"{socket.gethostname()}:{(data_dir / 'audit-checkpoints.jsonl').absolute()}"
