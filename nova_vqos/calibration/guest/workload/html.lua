-- SPDX-License-Identifier: Apache-2.0

-- Work of parsing for sysbench: a page of HTML, read byte by byte into tags,
-- attributes, text and entities, with a stack of open tags.
--   sysbench html.lua --events=N --time=0 run
-- LuaJIT compiles it to loads, comparisons and branches on bytes.

local ROWS, NAMES = 400, { 'td', 'th', 'span', 'em', 'a', 'b', 'code' }
local TEXT, TAG, NAME, VALUE, ENTITY = 0, 1, 2, 3, 4
local page

function thread_init()
    -- Park and Miller's generator: its products are exact in doubles.
    local seed = 1
    local function chance(most)
        seed = seed * 16807 % 2147483647
        return seed % most
    end
    local parts = { '<html><body><table>' }
    for row = 1, ROWS do
        parts[#parts + 1] = '<tr id="r' .. row .. '" class="c' .. chance(7)
            .. '">'
        for _ = 1, 3 + chance(4) do
            local name = NAMES[1 + chance(#NAMES)]
            parts[#parts + 1] = '<' .. name .. (chance(3) == 0
                and ' title="' .. chance(99991) .. '"' or '') .. '>word '
                .. chance(997) .. (chance(4) == 0 and ' &amp; more' or '')
                .. '</' .. name .. '>\n'
        end
        parts[#parts + 1] = '</tr>\n'
    end
    page = table.concat(parts) .. '</table></body></html>\n'
end

function event()
    local state, depth, hash = TEXT, 0, 0
    local tags, attributes, letters, entities, errors = 0, 0, 0, 0, 0
    local closing = false
    local open = {}
    for at = 1, #page do
        local byte = page:byte(at)
        if state == TEXT then
            if byte == 60 then
                state, hash, closing = TAG, 0, false
            elseif byte == 38 then
                state = ENTITY
            elseif byte > 32 then
                letters = letters + 1
            end
        elseif state == ENTITY then
            if byte == 59 then
                state, entities = TEXT, entities + 1
            end
        elseif state == VALUE then
            if byte == 34 then
                state, attributes = NAME, attributes + 1
            end
        elseif byte == 62 then
            if closing then
                if open[depth] ~= hash then
                    errors = errors + 1
                end
                depth = depth - 1
            else
                depth, tags = depth + 1, tags + 1
                open[depth] = hash
            end
            state = TEXT
        elseif byte == 47 then
            closing = true
        elseif byte == 34 then
            state = VALUE
        elseif byte == 32 then
            state = NAME
        elseif state == TAG then
            hash = (hash * 31 + byte) % 65536
        end
    end
    if depth ~= 0 or errors ~= 0 then
        error('the page is not well formed')
    end
end
