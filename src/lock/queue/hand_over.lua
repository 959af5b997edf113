-- Begins `acquire` and `release`.
-- KEYS  L, the queue, what is known of those in it
-- L is token16 stamp16|''. A member of the queue is token16 ttl_ms; of each is known when it was heard of last, stamp16,
-- and whether messages reach it: 'w', or 'p' who polls.
local token, stamped, fair, channel = ARGV[1], ARGV[2] == '1', ARGV[3] == '1', ARGV[4]
local stale_us = 3000000
local function micros()
  local t = redis.call('TIME')
  return string.format('%010d%06d', t[1], t[2])
end
-- The first who was heard of lately, and whether messages reach it.
local function next_in_line(now)
  while true do
    local member = redis.call('LPOP', KEYS[2])
    if not member then return end
    local known = redis.call('HGET', KEYS[3], member)
    redis.call('HDEL', KEYS[3], member)
    if known and tonumber(now) - tonumber(known:sub(1, 16)) <= stale_us then return member, known:sub(17) == 'w' end
  end
end
-- Whether anybody heard it. A server that does not say, for want of rights, is believed.
local function tell(member, what)
  return redis.pcall('PUBLISH', channel .. member:sub(1, 8), what .. member:sub(1, 16)) ~= 0
end
-- The next in line has the lock from now on: nobody gets in between. Who is gone is passed over.
local function hand_over(now)
  while true do
    local member, woken = next_in_line(now)
    if not member then return end
    local set = redis.pcall('SET', KEYS[1], member:sub(1, 16) .. (stamped and now or ''), 'PX', member:sub(17))
    if set.err then return end
    if tell(member, 'h' .. now) or not woken then return member end
  end
end
