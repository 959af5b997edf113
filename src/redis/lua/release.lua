-- Releases a lease, at once or leaving a failure marker whose block doubles from failure to failure.
-- KEYS  L
-- ARGV  token16, first_ms|0, most_ms, code, channel prefix, key hash
-- 1 Held | 0 Lost
local l = redis.pcall('GET', KEYS[1])
if type(l) ~= 'string' or l:sub(1, 17) ~= 'H' .. ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local first, most = tonumber(ARGV[2]), tonumber(ARGV[3])
if first > 0 then
  local fails = math.min((tonumber(l:sub(34, 34)) or 0) + 1, 9)
  local hold = math.min(first * 2 ^ (fails - 1), most)
  -- The count must outlive the block, otherwise the next failure could not double it.
  local marker = string.format('F%d%06d', fails, most) .. ARGV[4]
  redis.pcall('SET', KEYS[1], marker, 'PX', string.format('%d', hold + most))
end
local outcome = first > 0 and 'f' or 'r'
for i = 35, #l, 8 do redis.pcall('PUBLISH', ARGV[5] .. l:sub(i, i + 7), outcome .. ARGV[6]) end
return 1
