-- Drops entries and leases, so that no earlier fill is stored, and wakes the holders and the waiters.
-- May let the values expire in place of dropping them, or grant the first lease in the same step, to a put.
-- KEYS  every L, then every V
-- ARGV  channel prefix, ''|'e' for an expiry|token16 keep_ms7 px of the lease to grant, then the key hash of every L
-- stamp16 of the lease that was granted | 1 if none was to be
local leases = {}
for i = 3, #ARGV do leases[i] = redis.pcall('GET', KEYS[i - 2]) end
local grant, last, now, stamp = ARGV[2], #KEYS, nil, 1
if grant ~= '' then now = redis.call('TIME') end
if grant == 'e' then
  last = #ARGV - 2
  for i = last + 1, #KEYS do
    local head = redis.pcall('GETRANGE', KEYS[i], '0', '160')
    local is_value = type(head) == 'string' and #head == 161 and head:sub(1, 1) == 'v'
    if is_value and head:sub(154) == ('\0'):rep(8) then -- the first expiry counts
      local at = struct.pack('<i8', now[1] * 1000000 + now[2])
      is_value = type(redis.pcall('SETRANGE', KEYS[i], '153', at)) == 'number'
    end
    -- A marker has no stale use, and a server without memory refuses SETRANGE.
    if not is_value then redis.call('DEL', KEYS[i]) end
  end
end
if last > 0 then redis.call('DEL', unpack(KEYS, 1, last)) end
if #grant > 1 then
  stamp = ('000000000' .. now[1]):sub(-10) .. ('00000' .. now[2]):sub(-6)
  redis.call('SET', KEYS[1], 'H' .. grant:sub(1, 16) .. stamp .. '00' .. grant:sub(17, 23), 'PX', grant:sub(24))
end
for i = 3, #ARGV do
  local l = leases[i]
  if type(l) == 'string' and l:sub(1, 1) == 'H' then
    local message = 'g' .. ARGV[i]
    redis.pcall('PUBLISH', ARGV[1] .. l:sub(2, 9), message)
    for j = 43, #l, 8 do redis.pcall('PUBLISH', ARGV[1] .. l:sub(j, j + 7), message) end
  end
end
return stamp
