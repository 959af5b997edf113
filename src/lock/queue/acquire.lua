-- The lock, or a place in the queue for it.
-- ARGV  token16, stamped, fair, channel prefix, ttl_ms, 'w' | 'p' | '' for no place
-- {1, pttl, stamp16} Acquired, perhaps a while ago | {0, pttl, now16} Busy
local ttl, how = ARGV[5], ARGV[6]
local member, now = token .. ttl, micros()
local l = redis.pcall('GET', KEYS[1])
if type(l) == 'table' then return l end
local function wait()
  if how ~= '' then
    -- A server that is short of memory may have dropped the one without the other.
    if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('DEL', KEYS[3]) end
    if redis.call('HSET', KEYS[3], member, now .. how) == 1 then redis.call('RPUSH', KEYS[2], member) end
    redis.call('PEXPIRE', KEYS[2], 60000)
    redis.call('PEXPIRE', KEYS[3], 60000)
  end
end
if l then
  if l:sub(1, 16) == token then return {1, redis.call('PTTL', KEYS[1]), l:sub(17)} end
  wait()
  return {0, redis.call('PTTL', KEYS[1]), now}
end
-- Free, although somebody waits: its holder died.
if fair and redis.call('EXISTS', KEYS[2]) == 1 then
  wait()
  local holder = hand_over(now)
  if holder and holder ~= member then return {0, redis.call('PTTL', KEYS[1]), now} end
end
if how ~= '' and redis.call('HDEL', KEYS[3], member) == 1 then redis.call('LREM', KEYS[2], 1, member) end
redis.call('SET', KEYS[1], token .. (stamped and now or ''), 'PX', ttl)
return {1, tonumber(ttl), stamped and now or ''}
