-- Refuses JSON requests that name a field which their message does not have: Envoy's transcoder drops it without a word,
-- so that {"modee": "INVOKE_MODE_DRY_RUN"} would run the tool. Stands before the transcoder, reads the same descriptor,
-- and takes strict JSON alone: of what the transcoder's lenient parser might read otherwise, nothing passes.

local DESCRIPTOR = "gen/toolhub.binpb"
local DEPTH_MAX = 100
local FREE = ".google.protobuf.Value"

-- Fields of a protobuf message: { [number] = { value, … } }; fixed-width values are left out, a descriptor has none we need.
local function fields_of(bytes)
  local at, found = 1, {}
  local function varint()
    local value, unit = 0, 1
    repeat
      local byte = bytes:byte(at)
      at, value, unit = at + 1, value + (byte % 128) * unit, unit * 128
    until byte < 128
    return value
  end
  while at <= #bytes do
    local key = varint()
    local number, wire, value = math.floor(key / 8), key % 8, nil
    if wire == 0 then
      value = varint()
    elseif wire == 2 then
      local size = varint()
      value, at = bytes:sub(at, at + size - 1), at + size
    else
      at = at + (wire == 1 and 8 or 4)
    end
    found[number] = found[number] or {}
    table.insert(found[number], value)
  end
  return found
end

local function first(fields, number)
  return (fields[number] or {})[1]
end

-- messages[".package.Name"] = { [field, by both of its names] = type of its messages, or true for scalars }
-- maps[".package.Name.LabelsEntry"] = the type of its values; requests["/package.Service/Method"] = ".package.Request"
local messages, maps, requests = {}, {}, {}

local function read_message(prefix, bytes)
  local message, fields = fields_of(bytes), {}
  local name = prefix .. "." .. first(message, 1)
  for _, one in ipairs(message[2] or {}) do
    local field = fields_of(one)
    local type = first(field, 6) and first(field, 5) == 11 and first(field, 6) or true
    fields[first(field, 1)], fields[first(field, 10) or first(field, 1)] = type, type
  end
  for _, nested in ipairs(message[3] or {}) do
    read_message(name, nested)
  end
  messages[name] = fields
  if first(fields_of(first(message, 7) or ""), 7) == 1 then -- map_entry
    maps[name] = fields.value
  end
end

local function read_descriptor(path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:read("*a")
  file:close()
  for _, one in ipairs(fields_of(bytes)[1]) do
    local proto = fields_of(one)
    local package = first(proto, 2)
    for _, message in ipairs(proto[4] or {}) do
      read_message("." .. package, message)
    end
    for _, service in ipairs(proto[6] or {}) do
      local described = fields_of(service)
      for _, method in ipairs(described[2] or {}) do
        local rpc = fields_of(method)
        requests["/" .. package .. "." .. first(described, 1) .. "/" .. first(rpc, 1)] = first(rpc, 2)
      end
    end
  end
end

read_descriptor(DESCRIPTOR)

-- The JSON value at `at`, held against a type: where it ends. Raises { message } for what is refused.
local value_end

local function refuse(message)
  error({ message }, 0)
end

local function skip_blanks(text, at)
  return text:find("[^ \t\r\n]", at) or #text + 1
end

local function string_end(text, at)
  if text:sub(at, at) ~= '"' then
    refuse("The body is not strict JSON: a string is missing at byte " .. at .. ".")
  end
  local from = at + 1
  while true do
    local stop = text:find('["\\%c]', from)
    local sign = stop and text:sub(stop, stop)
    if sign == '"' then
      return stop + 1
    elseif sign == "\\" then
      from = stop + 2
    elseif sign == "\127" then
      from = stop + 1
    else
      refuse("The body is not strict JSON: the string at byte " .. at .. " does not end.")
    end
  end
end

-- Each of `[a, b]` or `{a, b}`; `read(at)` returns where the element ends.
local function each_until(text, at, close, read)
  at = skip_blanks(text, at + 1)
  if text:sub(at, at) == close then
    return at + 1
  end
  while true do
    at = skip_blanks(text, read(at))
    local sign = text:sub(at, at)
    if sign == close then
      return at + 1
    elseif sign ~= "," then
      refuse("The body is not strict JSON: `,` or `" .. close .. "` is missing at byte " .. at .. ".")
    end
    at = skip_blanks(text, at + 1)
  end
end

local function object_end(text, at, type, depth)
  if type == true then
    refuse("The object at byte " .. at .. " stands where the contract has none.")
  end
  local fields, of_map = messages[type], maps[type]
  local is_free = type:find("^%.google%.protobuf%.") ~= nil -- what is inside of a Struct is not the contract's
  return each_until(text, at, "}", function(from)
    local key_end = string_end(text, from)
    local name = text:sub(from + 1, key_end - 2)
    local colon = skip_blanks(text, key_end)
    if text:sub(colon, colon) ~= ":" then
      refuse("The body is not strict JSON: `:` is missing at byte " .. colon .. ".")
    end
    local inner = is_free and FREE or of_map or fields[name]
    if inner == nil then
      refuse("There is no field `" .. name:sub(1, 64) .. "` in " .. type:sub(2) .. ".")
    end
    return value_end(text, skip_blanks(text, colon + 1), inner, depth + 1)
  end)
end

function value_end(text, at, type, depth)
  if depth > DEPTH_MAX then
    refuse("The body is nested more than " .. DEPTH_MAX .. " deep.")
  end
  local sign = text:sub(at, at)
  if sign == "{" then
    return object_end(text, at, type, depth)
  elseif sign == "[" then
    return each_until(text, at, "]", function(from)
      return value_end(text, from, type, depth + 1)
    end)
  elseif sign == '"' then
    return string_end(text, at)
  end
  local stop = text:match("^-?%d[%d.eE+-]*()", at) or text:match("^true()", at) or text:match("^false()", at)
  return stop or text:match("^null()", at) or refuse("The body is not strict JSON at byte " .. at .. ".")
end

local function check(text, type)
  local stop = skip_blanks(text, value_end(text, skip_blanks(text, 1), type, 0))
  if stop <= #text then
    refuse("The body is not strict JSON: more than one value, at byte " .. stop .. ".")
  end
end

-- As the transcoder writes down the status of a call.
local function answer(request, status, code, message)
  local shown = message:gsub('[%c"\\\128-\255]', "?")
  local body = '{"code":' .. code .. ',"message":"' .. shown .. '"}'
  request:respond({ [":status"] = status, ["content-type"] = "application/json" }, body)
end

function envoy_on_request(request)
  local headers = request:headers()
  local content_type = headers:get("content-type") or ""
  if content_type == "application/grpc" or content_type:sub(1, 17) == "application/grpc+" then
    return -- gRPC-Web is gRPC by now
  end
  local type = requests[(headers:get(":path") or ""):match("^[^?]*")]
  if type == nil then
    return answer(request, "404", 12, "There is no such RPC; the path is /toolhub.v1.SERVICE/METHOD.")
  end
  local body = request:body()
  if body == nil or body:length() == 0 then
    return
  end
  local is_well, problem = pcall(check, body:getBytes(0, body:length()), type)
  if not is_well then
    answer(request, "400", 3, problem[1] or "The body cannot be read.")
  end
end
