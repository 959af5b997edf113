-- Returns the entry unless it is the one seen; otherwise grants the lease or names its holder.
-- KEYS  V L W..: a name of the layout, the lease, and another name of the layout, or all others
-- ARGV  token16, px of L, seen16|'', inbox8|'', max_inboxes, keep_ms7, key hash16 layout8
-- {1, entry} Hit | {1} Hit, to be read by GET; with 10 + n instead of 1 under the n-th W | stamp16 alive1 fails1 other1, as
-- one string, Granted; with other n > 0 to fill the n-th W | {3, rest_ms, holder16 stamp16, inboxes, registered, alive} Wait
-- {4, retry_ms, report, alive} Failed | {5} V and the only W are of other layouts, and stay
-- An entry begins with kind1 id16 and ARGV[7], in every version of this crate, and so do L and the messages keep their form.
-- L is 'H' token16 stamp16 fails1 mark1 keep_ms7 inbox8* for a lease, 'F' fails1 keep_ms6 report for a failure marker.
-- Both end keep_ms before L expires. A lease whose mark is '1' has ended before, and is taken at its next end. The leases
-- of earlier versions have neither mark nor keep_ms.
local head = redis.pcall('GETRANGE', KEYS[1], '1', '40')
-- A permission error must not be mistaken for a miss.
if type(head) == 'table' and not head.err:find('WRONGTYPE', 1, true) then return head end
local there, other = type(head) == 'string' and head ~= '', 0
if not there or head:sub(17) ~= ARGV[7] then
  local hash, own, free = ARGV[7]:sub(1, 16), false, nil
  for i = 3, #KEYS do
    local second = redis.pcall('GETRANGE', KEYS[i], '1', '40')
    if type(second) ~= 'string' then second = '' end
    own = second:sub(17) == ARGV[7]
    if own then
      head, there, other = second, true, i - 2
      break
    end
    if second:sub(17, 32) ~= hash then free = free or i - 2 end
  end
  if not own and there and head:sub(17, 32) == hash then
    if not free and #KEYS == 3 then return {5} end
    there, other = false, free or 0 -- V is of another layout, and stays, unless all are taken
  end
end
if there and head:sub(1, 16) ~= ARGV[3] then
  local name, hit = KEYS[1], 1
  if other > 0 then name, hit = KEYS[2 + other], 10 + other end
  -- A string of up to 4 KiB, because Redis hashes each string that it passes to a script.
  if redis.call('GETRANGE', name, '4096', '4096') ~= '' then return {hit} end
  return {hit, redis.call('GET', name)}
end
local alive = there and '1' or '0'
local l, ttl, fails = redis.pcall('GET', KEYS[2]), -1, '0'
if type(l) == 'string' then ttl = redis.call('PTTL', KEYS[2]) end
-- A lease without expiry, or of a wrong type, would block for ever: it is free.
if ttl >= 0 then
  local kind = l:sub(1, 1)
  if kind == 'H' then
    if l:sub(2, 17) == ARGV[1] then return l:sub(18, 33) .. alive .. l:sub(34, 34) .. other end
    local keep = tonumber(l:sub(36, 42)) or 0
    local rest = ttl - keep
    -- If the server has served no client for a while, an extension may arrive after this question.
    if rest <= 0 and l:sub(35, 35) == '0' then
      rest = 250
      redis.call('SET', KEYS[2], l:sub(1, 34) .. '1' .. l:sub(36), 'PX', keep + rest)
    end
    if rest > 0 then
      local waiting, registered = math.max((#l - 42) / 8, 0), 0
      if ARGV[4] ~= '' then
        local at = l:find(ARGV[4], 43, true)
        if at and (at - 43) % 8 == 0 then
          registered = 1
        elseif waiting < tonumber(ARGV[5]) and type(redis.pcall('APPEND', KEYS[2], ARGV[4])) == 'number' then
          registered, waiting = 1, waiting + 1
        end
      end
      return {3, rest, l:sub(2, 33), waiting, registered, alive}
    end
  elseif kind == 'F' then
    local keep = tonumber(l:sub(3, 8)) or 0
    if ttl > keep then return {4, ttl - keep, l:sub(9), alive} end
    fails = l:sub(2, 2)
  end
end
local now = redis.call('TIME')
local stamp = ('000000000' .. now[1]):sub(-10) .. ('00000' .. now[2]):sub(-6)
redis.call('SET', KEYS[2], 'H' .. ARGV[1] .. stamp .. fails .. '0' .. ARGV[6], 'PX', ARGV[2])
return stamp .. alive .. fails .. other
