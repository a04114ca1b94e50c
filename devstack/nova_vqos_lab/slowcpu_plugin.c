/*
 * Licensed under the Apache License, Version 2.0 (the "License"); you may
 * not use this file except in compliance with the License. You may obtain
 * a copy of the License at
 *
 *     http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
 * WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
 * License for the specific language governing permissions and limitations
 * under the License.
 *
 * A TCG plugin that makes a guest's CPU slower: it adds inline operations to
 * every instruction of the guest, so that the same work costs more CPU time.
 * How much more depends on the work, as between real CPUs.
 *
 * QEMU installs no header for plugins in the releases that this is for; what
 * follows is as much of the interface as is needed. VQOS_PLUGIN_API is 1 for
 * QEMU before 9.0, and 2 since, where counters are per vCPU.
 */

#include <stddef.h>
#include <stdint.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;

enum qemu_plugin_op {
    QEMU_PLUGIN_INLINE_ADD_U64,
};

typedef uint64_t qemu_plugin_id_t;
typedef void (*tb_translated_t)(qemu_plugin_id_t id,
                                struct qemu_plugin_tb *tb);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           tb_translated_t callback);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *
qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);

#define EXPORTED __attribute__((visibility("default")))

/* Operations that an instruction gets. */
#ifndef VQOS_ADDS
#define VQOS_ADDS 1
#endif

/*
 * Counters to rotate over, each in a cache line of its own: with one counter
 * for all, the chain of stores to it dominates everything else.
 */
#define COUNTERS 64
#define LINE 64

EXPORTED int qemu_plugin_version = VQOS_PLUGIN_API;

/* Only spreads the load: a lost update does no harm. */
static unsigned next_counter;

#if VQOS_PLUGIN_API == 1

void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn,
                                                enum qemu_plugin_op op,
                                                void *counter,
                                                uint64_t amount);

static struct {
    uint64_t value;
    char padding[LINE - sizeof(uint64_t)];
} counters[COUNTERS];

static int prepare(void)
{
    return 0;
}

static void add(struct qemu_plugin_insn *insn, unsigned counter)
{
    qemu_plugin_register_vcpu_insn_exec_inline(
        insn, QEMU_PLUGIN_INLINE_ADD_U64, &counters[counter].value, 1);
}

#else

struct qemu_plugin_scoreboard;

typedef struct {
    struct qemu_plugin_scoreboard *score;
    size_t offset;
} qemu_plugin_u64;

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
    struct qemu_plugin_insn *insn, enum qemu_plugin_op op,
    qemu_plugin_u64 counter, uint64_t amount);

static struct qemu_plugin_scoreboard *counters;

static int prepare(void)
{
    counters = qemu_plugin_scoreboard_new(COUNTERS * LINE);
    return counters ? 0 : -1;
}

static void add(struct qemu_plugin_insn *insn, unsigned counter)
{
    qemu_plugin_u64 entry = { counters, (size_t)counter * LINE };

    qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
        insn, QEMU_PLUGIN_INLINE_ADD_U64, entry, 1);
}

#endif

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    size_t count = qemu_plugin_tb_n_insns(tb);

    (void)id;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

        for (int n = 0; n < VQOS_ADDS; n++) {
            add(insn, next_counter++ % COUNTERS);
        }
    }
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const void *info,
                                 int argc, char **argv)
{
    (void)info;
    (void)argc;
    (void)argv;
    if (prepare()) {
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
