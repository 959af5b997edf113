-- Releases a lease, with or without a failure marker.
-- KEYS  L
-- ARGV  token16, block_ms, keep_ms|0 without a marker, report, channel prefix, key hash
-- 1 Held | 0 Lost
local l = redis.pcall('GET', KEYS[1])
if type(l) ~= 'string' or l:sub(1, 17) ~= 'H' .. ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local keep = tonumber(ARGV[3])
if keep > 0 then
  local fails = math.min((tonumber(l:sub(34, 34)) or 0) + 1, 9)
  local marker = string.format('F%d%06d', fails, keep) .. ARGV[4]
  redis.pcall('SET', KEYS[1], marker, 'PX', string.format('%d', tonumber(ARGV[2]) + keep))
end
local message = (keep > 0 and 'f' or 'r') .. ARGV[6]
for i = 43, #l, 8 do redis.pcall('PUBLISH', ARGV[5] .. l:sub(i, i + 7), message) end
return 1
