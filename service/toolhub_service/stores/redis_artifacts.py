"""What is known of artifacts, in Redis, shared by all hubs with the same prefix.

`artifact:<id>` is a hash: record, sha256, principal, size. `artifacts:expiry` lists them by expiry,
`artifacts:with:<sha256>` is the set of those that share bytes, and the hashes `artifacts:count` and `artifacts:bytes`
say what each principal owns.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolhub_service.domain.artifact import Artifact
from toolhub_service.stores.codec import decode_artifact, encode_artifact, readable
from toolhub_service.stores.redis_link import RedisLink
from toolhub_service.stores.redis_script import RedisScript

_OWN = """
local function own(principal, count, size)
  for name, by in pairs({count = count, bytes = size}) do
    if call('HINCRBY', P .. 'artifacts:' .. name, principal, by) == 0 then
      call('HDEL', P .. 'artifacts:' .. name, principal)
    end
  end
end
"""

_ADD = RedisScript(
    _OWN,
    """
local id, record, sha256, principal, size, expires = unpack(ARGV)
if call('EXISTS', P .. 'artifact:' .. id) == 1 then
  return
end
call('HSET', P .. 'artifact:' .. id, 'record', record, 'sha256', sha256, 'principal', principal, 'size', size)
call('ZADD', P .. 'artifacts:expiry', expires, id)
call('SADD', P .. 'artifacts:with:' .. sha256, id)
own(principal, 1, size)
""",
)

_EXPIRED = RedisScript(
    """
local records = {}
for at, id in ipairs(call('ZRANGEBYSCORE', P .. 'artifacts:expiry', '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  records[at] = call('HGET', P .. 'artifact:' .. id, 'record')
end
return records
"""
)

_REMOVE = RedisScript(
    _OWN,
    """
local id = ARGV[1]
local artifact = call('HMGET', P .. 'artifact:' .. id, 'sha256', 'principal', 'size')
if not artifact[1] then
  return 0
end
call('DEL', P .. 'artifact:' .. id)
call('ZREM', P .. 'artifacts:expiry', id)
call('SREM', P .. 'artifacts:with:' .. artifact[1], id)
own(artifact[2], -1, 0 - artifact[3])
return 1 - call('EXISTS', P .. 'artifacts:with:' .. artifact[1])
""",
)


class RedisArtifacts:
    """Implements `ArtifactRecords`."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def add(self, artifact: Artifact) -> None:
        await self._link.call(
            _ADD,
            artifact.artifact_id,
            encode_artifact(artifact),
            artifact.sha256,
            artifact.principal,
            artifact.size_bytes,
            artifact.expires_at_unix_ms,
        )

    async def get(self, artifact_id: str) -> Artifact | None:
        record = await self._link.run("HGET", self._link.key(f"artifact:{artifact_id}"), "record")
        return decode_artifact(record) if record else None

    async def expired(self, now_unix_ms: int, limit: int) -> Sequence[Artifact]:
        return readable(await self._link.call(_EXPIRED, now_unix_ms, limit), decode_artifact)

    async def remove(self, artifact_id: str) -> bool:
        return bool(await self._link.call(_REMOVE, artifact_id))

    async def usage(self, principal: str) -> tuple[int, int]:
        count, size_bytes = [
            int(await self._link.run("HGET", self._link.key(f"artifacts:{name}"), principal) or 0)
            for name in ("count", "bytes")
        ]
        return count, size_bytes

    async def start(self) -> None:
        await self._link.start()

    async def close(self) -> None:
        """Nothing is open here; the link is closed by its owner."""
