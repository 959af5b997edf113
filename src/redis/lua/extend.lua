-- Extends a lease, also one that has ended, and clears its mark.
-- KEYS  L
-- ARGV  token16 .. stamp16, lease_ms
-- 1 Held | 0 Lost
local l = redis.pcall('GETRANGE', KEYS[1], '0', '41')
if type(l) ~= 'string' or l:sub(1, 33) ~= 'H' .. ARGV[1] then return 0 end
local px = string.format('%d', ARGV[2] + l:sub(36, 42))
if l:sub(35, 35) == '0' then return redis.call('PEXPIRE', KEYS[1], px) end
l = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], l:sub(1, 34) .. '0' .. l:sub(36), 'PX', px)
return 1
