"""Lua that runs in Redis as one: what must not be interleaved, and what would need many round trips.

KEYS[1] is the prefix of all keys, which scripts append to. (A prefix with a hash tag, `{toolhub}:`, puts all keys into
one slot.) A script may run twice when its first answer was lost: one that changes something takes a token of the call
and leaves it beside what it wrote, so that the second run answers what the first one did.
"""

from __future__ import annotations

import hashlib

from toolhub_service.stores.redis_feed import KEPT

PRELUDE = f"""
local P = KEYS[1]
local call = redis.call

local function tell(kind, ...)
  local number = call('INCR', P .. 'feed:count')
  local fields = {{'k', kind}}
  for at, value in ipairs({{...}}) do
    fields[#fields + 1] = at
    fields[#fields + 1] = value
  end
  call('XADD', P .. 'feed', 'MAXLEN', '~', {KEPT}, number .. '-0', unpack(fields))
  return number
end
"""


class RedisScript:
    """A script and the digest that Redis knows it by once it has seen it."""

    __slots__ = ("digest", "text")

    def __init__(self, *parts: str) -> None:
        self.text = "\n".join((PRELUDE, *parts))
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()
