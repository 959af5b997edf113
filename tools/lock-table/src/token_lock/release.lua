-- Deletes the lock if its value is the token.
-- KEYS  L
-- ARGV  token
-- 1 Held | 0 Lost
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
