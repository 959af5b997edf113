-- Stores entries, if the lease or the hit-for-pass marker permits it.
-- KEYS  L, V of the same cache key, further V in its slot, redirect entries in its slot, then staging names in its slot
-- ARGV  token16 .. stamp16|'', marker16|renewed16|'', channel prefix, key hash, then for every V: entry, px, or if its
--       entry lies under the next staging name: kind1 id16, px; for every redirect entry: id16, px; then the number of
--       redirect entries, if there are any
-- A lease with an id renews the only V, if it has that id: ARGV[5] is then the beginning of the new entry, whose rest V has.
-- 1 Stored | 0 Fenced | error: nothing is stored, but the lease is dropped even so, unless the server refuses RENAME, which
-- begins the error | 2 not renewed, the lease is left
-- No staging name is left, whatever the outcome.
local n = math.floor(#ARGV / 2) - 1
local l, first = redis.pcall('GET', KEYS[1]), 2
if type(l) ~= 'string' then l = '' end
if ARGV[1] == '' or l:sub(1, 33) ~= 'H' .. ARGV[1] then
  local id = redis.pcall('GETRANGE', KEYS[2], '1', '16')
  local stored = id == ARGV[5]:sub(2, 17)
  if stored or ARGV[1] ~= '' or id ~= ARGV[2] then
    if #KEYS > n then redis.pcall('DEL', unpack(KEYS, n + 1)) end
    return stored and 1 or 0
  end
elseif ARGV[2] ~= '' then
  -- PEXPIRE comes first: a server without memory permits SETRANGE after it, which takes none here. 0: V has expired.
  if redis.pcall('GETRANGE', KEYS[2], '1', '16') ~= ARGV[2] or redis.pcall('PEXPIRE', KEYS[2], ARGV[6]) ~= 1 or
    type(redis.pcall('SETRANGE', KEYS[2], '0', ARGV[5])) ~= 'number' then return 2 end
  first = 3
end
local last, staged = n - (ARGV[2 * n + 3] or 0), #KEYS
-- The entry of the cache key itself comes last, because it makes the other entries reachable.
local refused, retry
for i = last, first, -1 do
  local r
  if #ARGV[2 * i + 1] > 17 then
    r = redis.pcall('SET', KEYS[i], ARGV[2 * i + 1], 'PX', ARGV[2 * i + 2])
  else
    r = redis.pcall('RENAME', KEYS[staged], KEYS[i]) -- it keeps the expiry
    if not r.err then
      staged = staged - 1
    elseif r.err:find('no such key', 1, true) then
      r = redis.error_reply('STAGING the entry is missing under its staging name')
    else
      r, retry = redis.error_reply('RENAME ' .. r.err), true
    end
  end
  if r.err then
    refused = r
    for j = i + 1, last do redis.call('DEL', KEYS[j]) end
    break
  end
end
if staged > n then redis.pcall('DEL', unpack(KEYS, n + 1, staged)) end
-- The same lease permits the fill that follows without staging.
if retry then return refused end
redis.call('DEL', KEYS[1])
-- A redirect entry that was dropped or replaced must stay so, and none may end earlier than it would.
for i = last + 1, n do
  local px = ARGV[2 * i + 2]
  if redis.pcall('GETRANGE', KEYS[i], '1', '16') == ARGV[2 * i + 1] then
    local ttl = redis.pcall('PTTL', KEYS[i])
    if type(ttl) == 'number' and ttl < tonumber(px) then redis.pcall('PEXPIRE', KEYS[i], px) end
  end
end
if l:sub(1, 1) ~= 'H' then return refused or 1 end
local message = (refused and 'r' or ARGV[5]:sub(1, 1)) .. ARGV[4]
-- PUBLISH comes last and by pcall: an ACL user without rights to channels must not make a stored fill look failed.
for i = 43, #l, 8 do redis.pcall('PUBLISH', ARGV[3] .. l:sub(i, i + 7), message) end
return refused or 1
