-- Releases the lock, leaves the queue, and notifies the next waiter.
-- ARGV  token16, stamped, fair, channel prefix, ttl_ms (leave the queue) | ''
-- 1 Held | 0 Lost
local leaves, member = ARGV[5] ~= '', token .. ARGV[5]
local was_queued = leaves and redis.call('ZREM', KEYS[2], member) == 1
if was_queued then redis.call('HDEL', KEYS[3], member) end
local l = redis.pcall('GET', KEYS[1])
local function notify_next()
  repeat local first = next_in_line() until not first or tell(first, 'f')
end
if type(l) ~= 'string' or l:sub(1, 16) ~= token then
  -- A waiter that was not queued any more may have been notified that the lock is free.
  if not l and not fair and leaves and not was_queued then notify_next() end
  return 0
end
if fair then
  if not hand_over() then redis.call('DEL', KEYS[1]) end
else
  redis.call('DEL', KEYS[1])
  notify_next()
end
return 1
