-- Common prefix of `acquire.lua` and `release.lua`.
-- KEYS  L, the queue (sorted set), last request time of each waiter that has waited longer than long_us (hash)
-- L is token16 stamp16|''. A member of the queue is token16 ttl_ms. Its score is its arrival time, stamp16.
-- A waiter that polls, because no message reaches it, has a score of stamp16 plus .5.
local token, stamped, channel = ARGV[1], ARGV[2] == '1', ARGV[3]
local long_us, stale_us = 500000, 3000000
local time
local function now()
  if not time then
    local t = redis.call('TIME')
    time = t[1] .. ('00000'):sub(#t[2]) .. t[2]
  end
  return time
end
-- Removes and returns the first waiter that sent a request within stale_us, and whether messages reach it.
local function next_in_line()
  while true do
    local first = redis.call('ZPOPMIN', KEYS[2])
    local member, came = first[1], first[2]
    if not member then return end
    local ago = now() - came
    if ago > long_us then
      ago = now() - (redis.call('HGET', KEYS[3], member) or came)
      redis.call('HDEL', KEYS[3], member)
    end
    if ago <= stale_us then return member, #came == 16 end
  end
end
-- Reports whether messages reach the process of a waiter: it subscribes at this server. `PUBLISH` does not decide this,
-- because its count is known only after the message was sent, and leaves out the subscribers of a replica, although the
-- message reaches them. If an ACL denies the command, the answer is `denied`.
local function is_subscribed(member, denied)
  local count = redis.pcall('PUBSUB', 'NUMSUB', channel .. member:sub(1, 8))
  if count.err then return denied end
  return count[2] > 0
end
-- Sets the lock for the next waiter, so that no other client acquires it in between. Skips waiters that are gone. Only
-- the new holder receives a message, because a waiter that receives one takes the lock for its own. If an ACL denies the
-- check, a registered waiter counts as subscribed, as it was at its last request.
local function hand_over()
  while true do
    local member, woken = next_in_line()
    if not member then return end
    if not woken or is_subscribed(member, true) then
      local set = redis.pcall('SET', KEYS[1], member:sub(1, 16) .. (stamped and now() or ''), 'PX', member:sub(17))
      if set.err then return end
      -- If an ACL denies PUBLISH, the waiter learns of the hand-over from its next request.
      redis.pcall('PUBLISH', channel .. member:sub(1, 8), 'h' .. now() .. member:sub(1, 16))
      return member
    end
  end
end
