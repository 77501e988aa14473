"""What becomes of pins, as scripts.

A pin's name is `<source> <tool> <digest>`, none of which has a space. `pin:<name>` is a hash: record, version, state,
at (when it was first seen, 16 digits) and by (the token of the last change). The sorted sets `pins` and
`pins:of:<source>` hold `<at> <name>`, all with the same score, so that Redis keeps them in the order of their bytes;
a script's own comparison of texts would follow the server's locale. `pins:revision` counts changes.
"""

from __future__ import annotations

from toolhub_service.stores.redis_script import RedisScript

AT_DIGITS = 16

PUT = RedisScript(
    """
local token = ARGV[1]
for first = 2, #ARGV, 6 do
  local _, name, _, version = unpack(ARGV, first, first + 3)
  local now = call('HMGET', P .. 'pin:' .. name, 'version', 'by')
  if (tonumber(now[1]) or 0) + 1 ~= tonumber(version) then
    return now[2] == token and 1 or 0
  end
end
for first = 2, #ARGV, 6 do
  local source, name, at, version, state, record = unpack(ARGV, first, first + 5)
  local lists = {P .. 'pins', P .. 'pins:of:' .. source}
  local before = call('HGET', P .. 'pin:' .. name, 'at')
  for _, list in ipairs(lists) do
    if before and before ~= at then
      call('ZREM', list, before .. ' ' .. name)
    end
    call('ZADD', list, 0, at .. ' ' .. name)
  end
  call('HSET', P .. 'pin:' .. name, 'version', version, 'state', state, 'at', at, 'by', token, 'record', record)
end
call('INCR', P .. 'pins:revision')
return 1
"""
)
"""token, then source, name, at, version, state and record of each → 1 when done, 0 when another change came first"""

OF_SOURCE = RedisScript(
    f"""
local kept = {{}}
for place, member in ipairs(call('ZRANGE', P .. 'pins:of:' .. ARGV[1], 0, -1)) do
  local name = string.sub(member, {AT_DIGITS + 2})
  local pin = call('HMGET', P .. 'pin:' .. name, 'version', 'record')
  kept[place] = {{name, pin[1], pin[2]}}
end
return kept
"""
)
"""source → name, version and record of each, all of one moment"""

READ = RedisScript(
    """
local kept = {}
for place, name in ipairs(ARGV) do
  local pin = call('HMGET', P .. 'pin:' .. name, 'version', 'record')
  kept[place] = {name, pin[1], pin[2]}
end
return kept
"""
)
"""names → name, version and record of each; both nil for those that are gone"""

LIST = RedisScript(
    f"""
local rows = {{}}
for place, member in ipairs(call('ZREVRANGEBYLEX', P .. ARGV[1], ARGV[2], '-', 'LIMIT', 0, ARGV[3])) do
  rows[place] = {{member, call('HGET', P .. 'pin:' .. string.sub(member, {AT_DIGITS + 2}), 'state')}}
end
return rows
"""
)
"""list, upper bound, limit → member and state of each, newest first"""

FORGET = RedisScript(
    f"""
local list = P .. 'pins:of:' .. ARGV[1]
local members = call('ZRANGE', list, 0, -1)
for _, member in ipairs(members) do
  call('ZREM', P .. 'pins', member)
  call('UNLINK', P .. 'pin:' .. string.sub(member, {AT_DIGITS + 2}))
end
call('DEL', list)
if #members > 0 then
  call('INCR', P .. 'pins:revision')
end
return #members
"""
)
"""source → how many"""
