-- Gives the lock, or the place in the queue, back, and tells who is next.
-- ARGV  token16, stamped, fair, channel prefix, member|''
-- 1 Held | 0 Lost
local member = ARGV[5]
if member ~= '' and redis.call('HDEL', KEYS[3], member) == 1 then redis.call('LREM', KEYS[2], 1, member) end
local l = redis.pcall('GET', KEYS[1])
if type(l) ~= 'string' or l:sub(1, 16) ~= token then return 0 end
if redis.call('EXISTS', KEYS[2]) == 0 then return redis.call('DEL', KEYS[1]) end
local now = micros()
if fair then
  -- Also where the last one told was gone.
  if not hand_over(now) then redis.call('DEL', KEYS[1]) end
else
  redis.call('DEL', KEYS[1])
  repeat local first = next_in_line(now) until not first or tell(first, 'f')
end
return 1
