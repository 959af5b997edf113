-- Acquires the lock, or joins its queue.
-- ARGV  token16, stamped, channel prefix, ttl_ms, 'w' (queue; notified if messages reach the process) | 'p' (queue;
--       polling) | '' (do not queue)
-- {1, pttl, stamp16} Acquired now or by an earlier request | {0, pttl, now16} Busy | {2, pttl, now16} Busy, and a
-- message will notify the waiter
local ttl, how = ARGV[4], ARGV[5]
local member = token .. ttl
local l = redis.pcall('GET', KEYS[1])
if type(l) == 'table' then return l end
-- Whether a message will notify the waiter.
local notified = false
-- Joins the queue. A queued waiter keeps its position. If its arrival time is in the future, because the clock was set
-- back, the time becomes now: otherwise every new waiter would be ahead of it.
local function wait()
  if how == '' then return end
  notified = how == 'w' and is_subscribed(member, false)
  local polls = notified and '' or '.5'
  if redis.call('ZADD', KEYS[2], 'NX', now() .. polls, member) == 0 then
    local score = redis.call('ZSCORE', KEYS[2], member)
    local came = score:sub(1, 16)
    if came > now() then came = now() end
    if score ~= came .. polls then redis.call('ZADD', KEYS[2], came .. polls, member) end
    if now() - came > long_us then
      redis.call('HSET', KEYS[3], member, now())
      redis.call('PEXPIRE', KEYS[3], 60000)
    end
  end
  redis.call('PEXPIRE', KEYS[2], 60000)
end
local function busy() return {notified and 2 or 0, redis.call('PTTL', KEYS[1]), now()} end
if l then
  if l:sub(1, 16) == token then return {1, redis.call('PTTL', KEYS[1]), l:sub(17)} end
  wait()
  return busy()
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  -- The lock is free although the queue has waiters: its holder crashed.
  wait()
  local holder = hand_over()
  if holder and holder ~= member then return busy() end
  if how ~= '' and redis.call('ZREM', KEYS[2], member) == 1 then redis.call('HDEL', KEYS[3], member) end
end
redis.call('SET', KEYS[1], token .. (stamped and now() or ''), 'PX', ttl)
return {1, tonumber(ttl), stamped and now() or ''}
