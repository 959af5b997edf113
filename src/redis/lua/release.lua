-- Releases a lease, with or without a failure marker.
-- KEYS  L
-- ARGV  token16, block_ms, keep_ms|0 without a marker, report, channel prefix, key hash
-- 1 Held | outcome1 inbox8* Held, and wake.lua has to wake the rest | 0 Lost
local l = redis.pcall('GET', KEYS[1])
if type(l) ~= 'string' or l:sub(1, 17) ~= 'H' .. ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local keep = tonumber(ARGV[3])
if keep > 0 then
  local fails = math.min((tonumber(l:sub(34, 34)) or 0) + 1, 9)
  local marker = string.format('F%d%06d', fails, keep) .. ARGV[4]
  redis.pcall('SET', KEYS[1], marker, 'PX', string.format('%d', tonumber(ARGV[2]) + keep))
end
local outcome = keep > 0 and 'f' or 'r'
local message = outcome .. ARGV[6]
-- 64 waiters, as in fill.lua.
for i = 43, math.min(#l, 554), 8 do redis.pcall('PUBLISH', ARGV[5] .. l:sub(i, i + 7), message) end
return #l > 554 and outcome .. l:sub(555) or 1
