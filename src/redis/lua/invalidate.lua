-- Drops entries and leases, so that no earlier fill is stored, and wakes the holders and the waiters.
-- May grant the first lease in the same step, to a put.
-- KEYS  every L, then every V
-- ARGV  channel prefix, ''|token16 keep_ms7 px of the lease to grant, then the key hash of every L
-- for every L: outcome1 inbox8* for wake.lua to wake, or ''; then stamp16 of the lease that was granted, if one was
local leases, left = {}, {}
for i = 3, #ARGV do leases[i] = redis.pcall('GET', KEYS[i - 2]) end
redis.call('DEL', unpack(KEYS))
local grant, stamp = ARGV[2], nil
if grant ~= '' then
  local now = redis.call('TIME')
  stamp = ('000000000' .. now[1]):sub(-10) .. ('00000' .. now[2]):sub(-6)
  redis.call('SET', KEYS[1], 'H' .. grant:sub(1, 16) .. stamp .. '00' .. grant:sub(17, 23), 'PX', grant:sub(24))
end
for i = 3, #ARGV do
  local l = leases[i]
  left[i - 2] = ''
  if type(l) == 'string' and l:sub(1, 1) == 'H' then
    local message = 'g' .. ARGV[i]
    redis.pcall('PUBLISH', ARGV[1] .. l:sub(2, 9), message)
    -- 64 waiters, as in fill.lua.
    for j = 43, math.min(#l, 554), 8 do redis.pcall('PUBLISH', ARGV[1] .. l:sub(j, j + 7), message) end
    if #l > 554 then left[i - 2] = 'g' .. l:sub(555) end
  end
end
left[#left + 1] = stamp
return left
