-- Drops entries and lease, so that no earlier fill is stored, and wakes the holder and the waiters.
-- KEYS  L, then every V
-- ARGV  channel prefix, key hash
-- the number of keys dropped
local l = redis.pcall('GET', KEYS[1])
local dropped = redis.call('DEL', unpack(KEYS))
if type(l) == 'string' and l:sub(1, 1) == 'H' then
  redis.pcall('PUBLISH', ARGV[1] .. l:sub(2, 9), 'g' .. ARGV[2])
  for i = 35, #l, 8 do redis.pcall('PUBLISH', ARGV[1] .. l:sub(i, i + 7), 'g' .. ARGV[2]) end
end
return dropped
