-- Releases the lock, leaves the queue, and hands the lock to the next waiter.
-- ARGV  token16, stamped, channel prefix, ttl_ms (leave the queue) | ''
-- 1 Held | 0 Lost | error: not known, and the lock is left
local leaves, member = ARGV[4] ~= '', token .. ARGV[4]
if leaves and redis.call('ZREM', KEYS[2], member) == 1 then redis.call('HDEL', KEYS[3], member) end
local l = redis.pcall('GET', KEYS[1])
-- A permission error must not be mistaken for the loss of the lock.
if type(l) == 'table' and not l.err:find('WRONGTYPE', 1, true) then return l end
if type(l) ~= 'string' or l:sub(1, 16) ~= token then return 0 end
if not hand_over() then redis.call('DEL', KEYS[1]) end
return 1
