-- SPDX-License-Identifier: Apache-2.0

-- Work of an image filter for sysbench: a picture of 256 by 256 pixels is
-- blurred (binomial, 3 by 3), and its edges are found (Sobel).
--   sysbench image.lua --events=N --time=0 run
-- LuaJIT compiles it to loads and stores of bytes and sums of integers.

local ffi = require('ffi')
local SIDE = 256
local picture, blurred, edges

function thread_init()
    picture = ffi.new('uint8_t[?]', SIDE * SIDE)
    blurred = ffi.new('uint8_t[?]', SIDE * SIDE)
    edges = ffi.new('uint8_t[?]', SIDE * SIDE)
    -- Park and Miller's generator: its products are exact in doubles.
    local seed = 1
    for i = 0, SIDE * SIDE - 1 do
        seed = seed * 16807 % 2147483647
        picture[i] = (i + seed % 64) % 256
    end
end

local function blur()
    for y = 1, SIDE - 2 do
        for at = y * SIDE + 1, y * SIDE + SIDE - 2 do
            local up, down = at - SIDE, at + SIDE
            blurred[at] = (picture[up - 1] + 2 * picture[up] + picture[up + 1]
                + 2 * picture[at - 1] + 4 * picture[at] + 2 * picture[at + 1]
                + picture[down - 1] + 2 * picture[down] + picture[down + 1]
                ) / 16
        end
    end
end

local function find_edges()
    for y = 1, SIDE - 2 do
        for at = y * SIDE + 1, y * SIDE + SIDE - 2 do
            local up, down = at - SIDE, at + SIDE
            local across = blurred[up + 1] + 2 * blurred[at + 1]
                + blurred[down + 1] - blurred[up - 1] - 2 * blurred[at - 1]
                - blurred[down - 1]
            local along = blurred[down - 1] + 2 * blurred[down]
                + blurred[down + 1] - blurred[up - 1] - 2 * blurred[up]
                - blurred[up + 1]
            local steep = math.abs(across) + math.abs(along)
            edges[at] = steep > 255 and 255 or steep
        end
    end
end

function event()
    blur()
    find_edges()
end
