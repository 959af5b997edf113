-- Returns the entry unless it is the one seen; otherwise grants the lease to the holder of the lock, or names the holder
-- of the lease to other processes.
-- KEYS  V L, and the other name of V, which is not used: one layout is all that the tests of locks have
-- ARGV  token16, px of L, seen16|'', inbox8|'', max_inboxes, keep_ms7 (0), key hash16 layout8, 'take' if this process has acquired the lock
--       | 'look' if another process holds it
-- {1, entry} Hit | {1} Hit, to be read by GET | stamp16 alive1 fails1 '0', as one string, Granted | {3, rest_ms, holder16 stamp16, inboxes, registered, alive} Wait
-- {4, retry_ms, report, alive} Failed
-- L is 'H' token16 stamp16 fails1 mark1 keep_ms7 inbox8* for a lease, 'F' fails1 keep_ms6 report for a failure marker, as
-- for get_or_lease.lua. Under a lock no lease is kept after its end.
local id = redis.pcall('GETRANGE', KEYS[1], '1', '16')
-- A permission error must not be mistaken for a miss.
if type(id) == 'table' and not id.err:find('WRONGTYPE', 1, true) then return id end
local there = type(id) == 'string' and id ~= ''
if there and id ~= ARGV[3] then
  -- A string of up to 4 KiB, because Redis hashes each string that it passes to a script.
  if redis.call('GETRANGE', KEYS[1], '4096', '4096') ~= '' then return {1} end
  return {1, redis.call('GET', KEYS[1])}
end
local alive = there and '1' or '0'
local l, ttl, fails, inboxes = redis.pcall('GET', KEYS[2]), -1, '0', ''
if type(l) == 'string' then ttl = redis.call('PTTL', KEYS[2]) end
-- A lease without expiry, or of a wrong type, would block for ever: it is free.
if ttl >= 0 then
  local kind = l:sub(1, 1)
  if kind == 'H' then
    if l:sub(2, 17) == ARGV[1] then return l:sub(18, 33) .. alive .. l:sub(34, 34) .. '0' end
    if ARGV[8] ~= 'take' then
      local waiting, registered = (#l - 42) / 8, 0
      if ARGV[4] ~= '' then
        local at = l:find(ARGV[4], 43, true)
        if at and (at - 43) % 8 == 0 then
          registered = 1
        elseif waiting < tonumber(ARGV[5]) and type(redis.pcall('APPEND', KEYS[2], ARGV[4])) == 'number' then
          registered, waiting = 1, waiting + 1
        end
      end
      return {3, ttl, l:sub(2, 33), waiting, registered, alive}
    end
    -- The lease belongs to a lock that was released since. Its waiters keep waiting.
    fails, inboxes = l:sub(34, 34), l:sub(43)
  elseif kind == 'F' then
    local keep = tonumber(l:sub(3, 8)) or 0
    if ttl > keep then return {4, ttl - keep, l:sub(9), alive} end
    fails = l:sub(2, 2)
  end
end
local now = redis.call('TIME')
local stamp = ('000000000' .. now[1]):sub(-10) .. ('00000' .. now[2]):sub(-6)
-- The holder of the lock has not acquired the lease yet, or has just ended it.
if ARGV[8] == 'look' then return {3, ARGV[2], string.rep('.', 16) .. stamp, 0, 0, alive} end
redis.call('SET', KEYS[2], 'H' .. ARGV[1] .. stamp .. fails .. '0' .. ARGV[6] .. inboxes, 'PX', ARGV[2])
return stamp .. alive .. fails .. '0'
