-- Begins `acquire` and `release`.
-- KEYS  L, the queue, when those in it were heard of last
-- A member of the queue is token16, 'w' who is woken or 'p' who polls, ttl_ms. L is token16 stamp16|''.
local token, stamped, fair, channel = ARGV[1], ARGV[2] == '1', ARGV[3] == '1', ARGV[4]
local stale_us = 3000000
local function micros()
  local t = redis.call('TIME')
  return string.format('%010d%06d', t[1], t[2])
end
-- The first who was heard of lately.
local function next_in_line(now)
  while true do
    local member = redis.call('LPOP', KEYS[2])
    if not member then return end
    local seen = redis.call('HGET', KEYS[3], member)
    redis.call('HDEL', KEYS[3], member)
    if seen and tonumber(now) - tonumber(seen) <= stale_us then return member end
  end
end
-- Whether anybody heard it. A server that does not say, for want of rights, is believed.
local function tell(member, what)
  local heard = redis.pcall('PUBLISH', channel .. member:sub(1, 8), what .. member:sub(1, 16))
  return heard ~= 0
end
-- The next in line has the lock from now on: nobody gets in between. Who is gone is passed over.
local function hand_over(now)
  while true do
    local member = next_in_line(now)
    if not member then return end
    local set = redis.pcall('SET', KEYS[1], member:sub(1, 16) .. (stamped and now or ''), 'PX', member:sub(18))
    if set.err then return end
    if tell(member, 'h' .. now) or member:sub(17, 17) == 'p' then return member end
  end
end
