-- Wakes waiters of a lease that has ended.
-- KEYS  L, which names the node of a cluster
-- ARGV  channel prefix, message, inbox8*
for i = 1, #ARGV[3], 8 do redis.pcall('PUBLISH', ARGV[1] .. ARGV[3]:sub(i, i + 7), ARGV[2]) end
return 1
