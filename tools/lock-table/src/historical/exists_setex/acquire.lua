-- Sets the lock if it does not exist.
-- KEYS  L
-- ARGV  ttl_ms, token
-- OK Acquired | nil Busy
if redis.call('EXISTS', KEYS[1]) == 0 then return redis.call('PSETEX', KEYS[1], ARGV[1], ARGV[2]) end
