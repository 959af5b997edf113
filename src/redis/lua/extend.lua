-- Extends a lease.
-- KEYS  L
-- ARGV  token16 .. stamp16, lease_ms
-- 1 Held | 0 Lost
local l = redis.pcall('GETRANGE', KEYS[1], '0', '32')
if l ~= 'H' .. ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
