-- Drops entries and leases, so that no earlier fill is stored, and wakes the holders and the waiters.
-- KEYS  every L, then every V
-- ARGV  channel prefix, then the key hash of every L
-- the number of keys dropped
local leases = {}
for i = 2, #ARGV do leases[i] = redis.pcall('GET', KEYS[i - 1]) end
local dropped = redis.call('DEL', unpack(KEYS))
for i = 2, #ARGV do
  local l = leases[i]
  if type(l) == 'string' and l:sub(1, 1) == 'H' then
    redis.pcall('PUBLISH', ARGV[1] .. l:sub(2, 9), 'g' .. ARGV[i])
    for j = 35, #l, 8 do redis.pcall('PUBLISH', ARGV[1] .. l:sub(j, j + 7), 'g' .. ARGV[i]) end
  end
end
return dropped
