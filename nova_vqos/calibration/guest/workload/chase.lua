-- SPDX-License-Identifier: Apache-2.0

-- Work of memory latency for sysbench: a linked list, each element in a cache
-- line of its own, walked in an order that no prefetcher foresees.
--   sysbench chase.lua --events=N --time=0 run

local ffi = require('ffi')
-- 64 MiB: beyond the last-level cache that one of many busy pCPUs gets.
local LINES, STEPS = 1048576, 10000
local lines
local at = 0

ffi.cdef('typedef struct { uint32_t next; uint32_t rest[15]; } line_t;')

function thread_init()
    lines = ffi.new('line_t[?]', LINES)
    -- A linear congruential generator of full period (Knuth, vol. 2, 3.2.1.2:
    -- an odd increment, and a multiplier that is 1 modulo 4): each line leads
    -- to another, and the walk comes by all of them.
    for i = 0, LINES - 1 do
        lines[i].next = (i * 1664525 + 1013904223) % LINES
    end
end

function event()
    for _ = 1, STEPS do
        at = lines[at].next
    end
end
