-- Extends the lock if its value begins with the token.
-- KEYS  L
-- ARGV  token16, ttl_ms
-- 1 Held | 0 Lost
if redis.call('GETRANGE', KEYS[1], 0, 15) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
