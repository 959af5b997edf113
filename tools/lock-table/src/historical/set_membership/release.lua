-- Deletes the companion and removes the member from the set, if the companion holds the token.
-- KEYS  companion, set
-- ARGV  token, member
-- 1 Held | 0 Lost
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[2])
return 1
