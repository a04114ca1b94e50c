-- SPDX-License-Identifier: Apache-2.0

-- Work of floating point for sysbench: five bodies that attract each other.
--   sysbench nbody.lua --events=N --time=0 run
-- LuaJIT compiles it to scalar additions, multiplications, divisions and
-- square roots of doubles: the same instructions on every CPU of a kind.

local BODIES, STEPS, STEP_S = 5, 2000, 0.001
local x, y, z, vx, vy, vz, mass = {}, {}, {}, {}, {}, {}, {}

function thread_init()
    for i = 1, BODIES do
        x[i], y[i], z[i] = 1.1 * i, 0.7 * i - 2, 3 - 0.3 * i * i
        vx[i], vy[i], vz[i] = 0.1 * i, 0.3 - 0.05 * i, 0.02 * i
        mass[i] = 1 / i
    end
end

local function accelerate(i)
    local xi, yi, zi = x[i], y[i], z[i]
    local ax, ay, az = 0, 0, 0
    for j = 1, BODIES do
        local dx, dy, dz = x[j] - xi, y[j] - yi, z[j] - zi
        -- Never 0: bodies that meet, and a body itself, do no harm.
        local square = dx * dx + dy * dy + dz * dz + 0.01
        local pull = mass[j] / (square * math.sqrt(square))
        ax, ay, az = ax + dx * pull, ay + dy * pull, az + dz * pull
    end
    vx[i] = vx[i] + ax * STEP_S
    vy[i] = vy[i] + ay * STEP_S
    vz[i] = vz[i] + az * STEP_S
end

function event()
    for _ = 1, STEPS do
        for i = 1, BODIES do
            accelerate(i)
        end
        for i = 1, BODIES do
            x[i] = x[i] + vx[i] * STEP_S
            y[i] = y[i] + vy[i] * STEP_S
            z[i] = z[i] + vz[i] * STEP_S
        end
    end
end
