-- Drops entries and leases, so that no earlier fill is stored, and wakes the holders and the waiters.
-- KEYS  every L, then every V
-- ARGV  channel prefix, then the key hash of every L
-- for every L: outcome1 inbox8* for wake.lua to wake, or ''
local leases, left = {}, {}
for i = 2, #ARGV do leases[i] = redis.pcall('GET', KEYS[i - 1]) end
redis.call('DEL', unpack(KEYS))
for i = 2, #ARGV do
  local l = leases[i]
  left[i - 1] = ''
  if type(l) == 'string' and l:sub(1, 1) == 'H' then
    local message = 'g' .. ARGV[i]
    redis.pcall('PUBLISH', ARGV[1] .. l:sub(2, 9), message)
    -- 64 waiters, as in fill.lua.
    for j = 43, math.min(#l, 554), 8 do redis.pcall('PUBLISH', ARGV[1] .. l:sub(j, j + 7), message) end
    if #l > 554 then left[i - 1] = 'g' .. l:sub(555) end
  end
end
return left
