/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCG plugin that makes a guest's CPU slower: every instruction costs a
 * little more, a division much more. So unlike are real CPUs: on Intel's of
 * 2013 a 64-bit division takes 40 to 100 cycles, on those of 2019 15. How much
 * slower a program gets depends on what it does.
 */

#include <string.h>

#include "qemu_plugin.h"

/*
 * Counters to rotate over, each in a cache line of its own: with one counter
 * for all, the chain of stores to it dominates everything else.
 */
#define COUNTERS 64
#define LINE 64

/* An instruction of x86 has at most so many bytes. */
#define MAX_SIZE 15

/* Only spreads the load: a lost update does no harm. */
static unsigned next_counter;

#if VQOS_PLUGIN_API == 1

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

#if VQOS_PLUGIN_API < 3

static size_t copy_bytes(const struct qemu_plugin_insn *insn, uint8_t *bytes)
{
    size_t size = qemu_plugin_insn_size(insn);

    size = size < MAX_SIZE ? size : MAX_SIZE;
    memcpy(bytes, qemu_plugin_insn_data(insn), size);
    return size;
}

#else

static size_t copy_bytes(const struct qemu_plugin_insn *insn, uint8_t *bytes)
{
    return qemu_plugin_insn_data(insn, bytes, MAX_SIZE);
}

#endif

static bool is_prefix(uint8_t byte)
{
    switch (byte) {
    case 0x26: case 0x2e: case 0x36: case 0x3e: case 0x64: case 0x65:
    case 0x66: case 0x67: case 0xf0: case 0xf2: case 0xf3:
        return true;
    default:
        /* REX, as guests run 64-bit code where it matters. */
        return (byte & 0xf0) == 0x40;
    }
}

/* DIV and IDIV are F6 or F7, with 6 or 7 in the next byte's middle bits. */
static bool is_division(const struct qemu_plugin_insn *insn)
{
    uint8_t bytes[MAX_SIZE] = { 0 };
    size_t size = copy_bytes(insn, bytes);
    size_t at = 0;

    while (at < size && is_prefix(bytes[at])) {
        at++;
    }
    return at + 1 < size && (bytes[at] & 0xfe) == 0xf6
        && (bytes[at + 1] & 0x30) == 0x30;
}

/* A multiplication that waits for the one before takes three cycles on every
 * x86 of the last fifteen years: the hosts' ratio is much the same on all. */
static void divide_slowly(unsigned vcpu, void *data)
{
    uint64_t product = (uint64_t)vcpu | 1;

    (void)data;
    for (int n = 0; n < VQOS_MULTIPLICATIONS; n++) {
        product *= 0x9e3779b97f4a7c15u;
        /* Keeps the compiler from folding the loop. */
        __asm__ volatile("" : "+r"(product));
    }
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    size_t count = qemu_plugin_tb_n_insns(tb);

    (void)id;
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

        add(insn, next_counter++ % COUNTERS);
        if (is_division(insn)) {
            qemu_plugin_register_vcpu_insn_exec_cb(
                insn, divide_slowly, QEMU_PLUGIN_CB_NO_REGS, NULL);
        }
    }
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info,
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
