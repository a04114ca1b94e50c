/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of QEMU's interface for TCG plugins as those of the lab need: QEMU
 * installs no header in the releases that they are for. VQOS_PLUGIN_API is 1
 * for QEMU before 9.0; 2 for 9.0, where counters are per vCPU; and 3 since,
 * where an instruction's bytes are copied out, and callbacks have conditions.
 */

#ifndef VQOS_QEMU_PLUGIN_H
#define VQOS_QEMU_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;

enum qemu_plugin_op {
    QEMU_PLUGIN_INLINE_ADD_U64,
};

enum qemu_plugin_cb_flags {
    QEMU_PLUGIN_CB_NO_REGS,
};

typedef uint64_t qemu_plugin_id_t;
typedef void (*translated_t)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*executed_t)(unsigned vcpu, void *data);
typedef void (*exited_t)(qemu_plugin_id_t id, void *data);

typedef struct {
    const char *target_name;
    struct {
        int min;
        int cur;
    } version;
    bool system_emulation;
    struct {
        int smp_vcpus;
        int max_vcpus;
    } system;
} qemu_info_t;

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           translated_t callback);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, exited_t callback,
                                    void *data);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
                                          executed_t callback,
                                          enum qemu_plugin_cb_flags flags,
                                          void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
                                            executed_t callback,
                                            enum qemu_plugin_cb_flags flags,
                                            void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *
qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);

#if VQOS_PLUGIN_API == 1

void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb,
                                              enum qemu_plugin_op op,
                                              void *counter, uint64_t amount);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *insn,
                                                enum qemu_plugin_op op,
                                                void *counter,
                                                uint64_t amount);

#else

struct qemu_plugin_scoreboard;

typedef struct {
    struct qemu_plugin_scoreboard *score;
    size_t offset;
} qemu_plugin_u64;

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
uint64_t qemu_plugin_u64_get(qemu_plugin_u64 counter, unsigned vcpu);
void qemu_plugin_u64_set(qemu_plugin_u64 counter, unsigned vcpu,
                         uint64_t value);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
    struct qemu_plugin_tb *tb, enum qemu_plugin_op op,
    qemu_plugin_u64 counter, uint64_t amount);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(
    struct qemu_plugin_insn *insn, enum qemu_plugin_op op,
    qemu_plugin_u64 counter, uint64_t amount);

#endif

#if VQOS_PLUGIN_API < 3

const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);

#else

enum qemu_plugin_cond {
    QEMU_PLUGIN_COND_GE = 7,
};

size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *bytes,
                             size_t size);
void qemu_plugin_register_vcpu_tb_exec_cond_cb(
    struct qemu_plugin_tb *tb, executed_t callback,
    enum qemu_plugin_cb_flags flags, enum qemu_plugin_cond condition,
    qemu_plugin_u64 counter, uint64_t amount, void *data);

#endif

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int qemu_plugin_version = VQOS_PLUGIN_API;

#endif
