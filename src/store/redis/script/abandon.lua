-- Gives a lease back, at once or after a tombstone that doubles from failure to failure.
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
  -- The count outlives the block, else it could not double.
  local tombstone = string.format('F%d%06d', fails, most) .. ARGV[4]
  redis.pcall('SET', KEYS[1], tombstone, 'PX', string.format('%d', hold + most))
end
local outcome = first > 0 and 'f' or 'r'
for i = 35, #l, 8 do redis.pcall('PUBLISH', ARGV[5] .. l:sub(i, i + 7), outcome .. ARGV[6]) end
return 1
