-- Stores entries, if the lease or the hit-for-pass marker permits it.
-- KEYS  L, V of the same cache key, further V in its slot, then redirect entries in its slot
-- ARGV  token16 .. stamp16|'', marker16|'', channel prefix, key hash, then for every V: entry, px; for every redirect
--       entry: id16, px; then the number of redirect entries, if there are any
-- 1 Stored | outcome1 inbox8* Stored, and wake.lua has to wake the rest | 0 Fenced | error: nothing is stored, but the
-- lease is dropped even so
local l = redis.pcall('GET', KEYS[1])
if type(l) ~= 'string' then l = '' end
if ARGV[1] == '' or l:sub(1, 33) ~= 'H' .. ARGV[1] then
  local id = redis.pcall('GETRANGE', KEYS[2], '1', '16')
  if id == ARGV[5]:sub(2, 17) then return 1 end
  if ARGV[2] == '' or id ~= ARGV[2] then return 0 end
end
local last = #KEYS - (ARGV[2 * #KEYS + 3] or 0)
-- The entry of the cache key itself comes last, because it makes the other entries reachable.
local refused
for i = last, 2, -1 do
  local r = redis.pcall('SET', KEYS[i], ARGV[2 * i + 1], 'PX', ARGV[2 * i + 2])
  if type(r) == 'table' and r.err then
    refused = r
    for j = i + 1, last do redis.call('DEL', KEYS[j]) end
    break
  end
end
redis.call('DEL', KEYS[1])
-- A redirect entry that was dropped or replaced must stay so, and none may end earlier than it would.
for i = last + 1, #KEYS do
  local px = ARGV[2 * i + 2]
  if redis.pcall('GETRANGE', KEYS[i], '1', '16') == ARGV[2 * i + 1] then
    local ttl = redis.pcall('PTTL', KEYS[i])
    if type(ttl) == 'number' and ttl < tonumber(px) then redis.pcall('PEXPIRE', KEYS[i], px) end
  end
end
if l:sub(1, 1) ~= 'H' then return refused or 1 end
local outcome = refused and 'r' or ARGV[5]:sub(1, 1)
local message = outcome .. ARGV[4]
-- 64 waiters, because the server serves no client while it writes to them. An error leaves no room for the rest.
local wave = refused and #l or math.min(#l, 546)
-- PUBLISH comes last and by pcall: an ACL user without rights to channels must not make a stored fill look failed.
for i = 35, wave, 8 do redis.pcall('PUBLISH', ARGV[3] .. l:sub(i, i + 7), message) end
if wave < #l then return outcome .. l:sub(wave + 1) end
return refused or 1
