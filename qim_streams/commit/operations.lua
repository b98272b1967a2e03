-- Edits and recalls, put in front of the scripts that apply them. The same rule in Python: operations/rules.py.
--
-- A record: head 17 bytes, version byte, array of 13 fields, then the revision if the message was revised or
-- mentions somebody, then the mentions.
-- Fields used: 3 message_id, 5 sender, 10 committed_at, 11 kind, 12 state, 13 body, 14 revision, 15 mentions.

local RECALL_REVISION, RECALL = 4095, 2

-- The functions, made when the first edit or recall of a call comes: a call without one does not pay for them.
local function operations()
  local function packed_bytes(text)
    local size = #text
    if size < 256 then return '\196' .. string.char(size) .. text end
    if size < 65536 then return '\197' .. struct.pack('>I2', size) .. text end
    return '\198' .. struct.pack('>I4', size) .. text
  end

  local function packed_number(number)
    if number < 128 then return string.char(number) end
    if number < 256 then return '\204' .. string.char(number) end
    return '\205' .. struct.pack('>I2', number)
  end

  -- msgpack items that records are made of: how many bytes of length or of number follow the first byte.
  local SIZED = {[196] = '>I1', [197] = '>I2', [198] = '>I4', [217] = '>I1', [218] = '>I2', [219] = '>I4'}
  local NUMBERS = {[204] = '>I1', [205] = '>I2', [206] = '>I4', [207] = '>I8'}

  -- The text or number at `at` and where the next one starts; nil for anything else. cmsgpack knows no bytes.
  local function item(data, at)
    local first = string.byte(data, at)
    if not first then return nil end
    if first < 128 then return first, at + 1 end
    local form = NUMBERS[first]
    if form then
      local after = at + 1 + tonumber(string.sub(form, 3))
      if after > #data + 1 then return nil end
      return struct.unpack(form, data, at + 1), after
    end
    local start, size = at + 1, first - 160
    form = SIZED[first]
    if form then
      start = start + tonumber(string.sub(form, 3))
      if start > #data + 1 then return nil end
      size = struct.unpack(form, data, at + 1)
    elseif size < 0 or size > 31 then
      return nil
    end
    if start + size > #data + 1 then return nil end
    return string.sub(data, start, start + size - 1), start + size
  end

  -- The fields of a record that may be a target; nil when it cannot be understood.
  local function fields_of(record)
    local f, at, count = {}, 20, (string.byte(record, 19) or 0) - 144
    if count == 76 and #record > 21 then at, count = 22, struct.unpack('>I2', record, 20) end -- an operation
    if count < 13 or count > 32 then return nil end
    for index = 1, count do
      f[index], at = item(record, at)
      if not at then return nil end
    end
    if at ~= #record + 1 or type(f[3]) ~= 'string' or #f[3] ~= 16 or type(f[5]) ~= 'string'
      or type(f[10]) ~= 'number' or type(f[11]) ~= 'number' or type(f[12]) ~= 'number'
      or type(f[13]) ~= 'string' then return nil end
    if f[11] ~= 0 or count == 13 then return f end
    if type(f[14]) ~= 'number' or f[14] > RECALL_REVISION then return nil end
    if count == 14 or (count == 15 and type(f[15]) == 'string') then return f end
  end

  -- The record of a message after an edit or recall: only state, body and revision differ. States have the
  -- numbers of the kinds that lead to them.
  local function revised(record, f, kind, body, revision)
    local mentions = f[15] and packed_bytes(f[15]) or ''
    local behind = 1 + #packed_bytes(f[13]) + (f[14] and #packed_number(f[14]) or 0) + #mentions
    return string.sub(record, 1, 18) .. (f[15] and '\159' or '\158') .. string.sub(record, 20, #record - behind)
      .. string.char(kind) .. packed_bytes(body) .. packed_number(revision) .. mentions
  end

  return fields_of, revised, packed_number
end
