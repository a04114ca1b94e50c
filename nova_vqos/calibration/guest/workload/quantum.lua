-- SPDX-License-Identifier: Apache-2.0

-- A server of one kind, for the calibration of slices: its vCPUs are threads.
--   sysbench quantum.lua --threads=N --time=0 --kind=walk|lock|answer
--       --board=FD --slot=N --parent=PID [--lines=N] [--socket=FD]
--       [--mixes=N] [--waits=1] run
-- Each thread tells on the board, memory that it shares with who started it,
-- who it is, how much work it did, and in how much CPU time.

local bit = require('bit')
local ffi = require('ffi')
local C = ffi.C

ffi.cdef([[
typedef struct { uint32_t next; uint32_t rest[15]; } line_t;
typedef struct { double thread, work, cpu_ns, rest[5]; } slot_t;
typedef struct {
    int guard, rest_1[15]; uint32_t next, rest_2[15];
    uint32_t serving, rest_3[15];
} lock_t;
typedef struct { slot_t slots[32]; lock_t lock; } board_t;
struct time { long s, ns; };
int gettid(void);
int getppid(void);
int prctl(int option, unsigned long value);
int clock_gettime(int clock, struct time *now);
void *mmap(void *where, size_t bytes, int access, int flags, int file,
           long from);
int sched_getcpu(void);
int pthread_spin_init(int *lock, int shared);
int pthread_spin_lock(int *lock);
int madvise(void *where, size_t bytes, int advice);
int pthread_spin_unlock(int *lock);
long recv(int socket, void *into, size_t bytes, int flags);
long send(int socket, const void *from, size_t bytes, int flags);
]])

-- Of Linux, on every CPU.
local READ_WRITE, SHARED, PRIVATE_ANONYMOUS = 3, 1, 0x22
local DONT_WAIT, THREAD_CPU_TIME, HUGE_PAGES = 0x40, 3, 14
local DEATH_SIGNAL, KILL = 1, 9
-- Some 100 us, between two looks at the clock.
local STEPS, SECTIONS = 1000, 5
-- In a critical section, and out of it: some 5 and 15 us.
local INSIDE, OUTSIDE = 1000, 3000

sysbench.cmdline.options = {
    kind = {'walk, lock or answer', 'walk'},
    board = {'file descriptor of the board', 0},
    slot = {'of the first thread', 0},
    parent = {'process to end with', 0},
    lines = {'of the list that is walked: a power of two', 1024},
    socket = {'file descriptor that requests come from', 0},
    mixes = {'work for an answer: 20000 are some 100 us', 20000},
    waits = {'whether it waits for requests, and has no work of its own', 0}
}

local board, slot, lines, guard, run
local at, mixed, work = 0, 1, 0
local now, message = ffi.new('struct time'), ffi.new('char[64]')

local function map(bytes, flags, file)
    local mapped = C.mmap(nil, bytes, READ_WRITE, flags, file, 0)
    if ffi.cast('intptr_t', mapped) == -1 then
        error('no memory')
    end
    return mapped
end

-- Arithmetic that nothing can leave out: the result is used.
local function mix(times)
    local value = mixed
    for _ = 1, times do
        value = bit.bxor(value, bit.lshift(value, 13))
        value = bit.bxor(value, bit.rshift(value, 17))
        value = bit.bxor(value, bit.lshift(value, 5))
    end
    mixed = value
end

local function tell()
    C.clock_gettime(THREAD_CPU_TIME, now)
    slot.cpu_ns = tonumber(now.s) * 1e9 + tonumber(now.ns)
    slot.work = work
end

local kinds = {}

-- Walks a linked list, each element in a cache line of its own, in an order
-- that no prefetcher foresees: see chase.lua.
function kinds.walk()
    for _ = 1, STEPS do
        at = lines[at].next
    end
    work = work + STEPS
end

-- Enters critical sections. The lock is fair, as kernels' spin locks are: who
-- came first is next, even while its vCPU is not running.
function kinds.lock()
    local lock = board.lock
    for _ = 1, SECTIONS do
        C.pthread_spin_lock(guard)
        local ticket = lock.next
        lock.next = ticket + 1
        C.pthread_spin_unlock(guard)
        while lock.serving ~= ticket do
            -- A call keeps the compiler from looking only once.
            C.sched_getcpu()
        end
        mix(INSIDE)
        C.pthread_spin_lock(guard)
        lock.serving = ticket + 1
        C.pthread_spin_unlock(guard)
        mix(OUTSIDE)
    end
    work = work + SECTIONS
end

-- Answers requests that have come, or else does work of its own, so that it
-- never waits: a vCPU that does both looks busy.
function kinds.answer()
    local bytes = C.recv(sysbench.opt.socket, message, 64,
                         sysbench.opt.waits == 0 and DONT_WAIT or 0)
    mix(sysbench.opt.mixes)
    if bytes > 0 then
        C.send(sysbench.opt.socket, message, bytes, DONT_WAIT)
    end
    work = work + 1
end

local function open_board()
    board = ffi.cast('board_t *', map(
        ffi.sizeof('board_t'), SHARED, sysbench.opt.board))
    guard = ffi.cast('int *', board.lock)
end

-- Called once, before there are threads.
function init()
    C.prctl(DEATH_SIGNAL, KILL)
    if C.getppid() ~= sysbench.opt.parent then
        error('whom it belongs to is gone')
    end
    open_board()
    C.pthread_spin_init(guard, 0)
end

function thread_init()
    open_board()
    slot = board.slots[sysbench.opt.slot + sysbench.tid]
    if sysbench.opt.kind == 'walk' then
        local count = sysbench.opt.lines
        local bytes = count * ffi.sizeof('line_t')
        lines = ffi.cast('line_t *', map(bytes, PRIVATE_ANONYMOUS, -1))
        -- As memory of guests mostly is; where there is none, it matters not.
        C.madvise(lines, bytes, HUGE_PAGES)
        for i = 0, count - 1 do
            lines[i].next = (i * 1664525 + 1013904223) % count
        end
    end
    run = assert(kinds[sysbench.opt.kind], 'no such kind')
    slot.thread = C.gettid()
end

function event()
    run()
    tell()
end
