/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCG plugin that counts the instructions of a guest in a file, which the
 * agent reads: its argument directory= is where, its process id the name. The
 * layout is that of nova_vqos/hypervisor/linux/instructions.py. The file is
 * made before the guest runs, and removed at QEMU's end.
 *
 * An instruction that is repeated by a prefix counts as often as it is
 * executed; a block that an exception ends counts as a whole.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qemu_plugin.h"

#define MAGIC "VQOSINSN"
#define VERSION 1
#define LINE 64
#define MOST_VCPUS 4096
#define MODE (S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH)

struct file {
    char magic[8];
    uint32_t version;
    uint32_t vcpus;
    char padding[LINE - 16];
    struct {
        uint64_t count;
        char padding[LINE - sizeof(uint64_t)];
    } vcpu[];
};

static char path[4096];
static struct file *file;

static int fail(const char *what)
{
    fprintf(stderr, "vqos: instructions cannot be counted in %s: %s: %s\n",
            path, what, strerror(errno));
    return -1;
}

/* Only its own thread adds to a vCPU's counter. */
static void add(unsigned vcpu, uint64_t count)
{
    if (vcpu < file->vcpus) {
        __atomic_store_n(&file->vcpu[vcpu].count,
                         file->vcpu[vcpu].count + count, __ATOMIC_RELAXED);
    }
}

#if VQOS_PLUGIN_API < 3

static void add_block(unsigned vcpu, void *count)
{
    add(vcpu, (uintptr_t)count);
}

static void count_by_callback(struct qemu_plugin_tb *tb)
{
    qemu_plugin_register_vcpu_tb_exec_cb(
        tb, add_block, QEMU_PLUGIN_CB_NO_REGS,
        (void *)(uintptr_t)qemu_plugin_tb_n_insns(tb));
}

#endif

#if VQOS_PLUGIN_API == 1

static int prepare(void)
{
    return 0;
}

/* What is inline adds to the same counter for all vCPUs, without a lock: of
 * more than one, each would lose what the others count. */
static void count(struct qemu_plugin_tb *tb)
{
    if (file->vcpus > 1) {
        count_by_callback(tb);
        return;
    }
    qemu_plugin_register_vcpu_tb_exec_inline(
        tb, QEMU_PLUGIN_INLINE_ADD_U64, &file->vcpu[0].count,
        qemu_plugin_tb_n_insns(tb));
}

#elif VQOS_PLUGIN_API == 2

/* Counters are in QEMU's own memory, and nothing inline moves them. */
static int prepare(void)
{
    return 0;
}

static void count(struct qemu_plugin_tb *tb)
{
    count_by_callback(tb);
}

#else

/* Instructions that are in QEMU's own memory until they are moved. */
#define MOST_PENDING 65536

static qemu_plugin_u64 pending;

static int prepare(void)
{
    pending.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
    return pending.score ? 0 : -1;
}

static void move(unsigned vcpu, void *data)
{
    (void)data;
    add(vcpu, qemu_plugin_u64_get(pending, vcpu));
    qemu_plugin_u64_set(pending, vcpu, 0);
}

static void count(struct qemu_plugin_tb *tb)
{
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(
        tb, QEMU_PLUGIN_INLINE_ADD_U64, pending, qemu_plugin_tb_n_insns(tb));
    qemu_plugin_register_vcpu_tb_exec_cond_cb(
        tb, move, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_COND_GE, pending,
        MOST_PENDING, NULL);
}

#endif

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    (void)id;
    count(tb);
}

static void remove_file(qemu_plugin_id_t id, void *data)
{
    (void)id;
    (void)data;
    unlink(path);
}

/* Anew: an earlier process of this id may have left one. */
static int make_file(uint32_t vcpus)
{
    size_t size = sizeof(*file) + vcpus * sizeof(file->vcpu[0]);
    int handle;

    if (unlink(path) && errno != ENOENT) {
        return fail("unlink");
    }
    handle = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, MODE);
    if (handle < 0) {
        return fail("open");
    }
    /* Whatever the umask is. */
    if (fchmod(handle, MODE) || ftruncate(handle, (off_t)size)) {
        return fail("size");
    }
    file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    close(handle);
    if (file == MAP_FAILED) {
        return fail("mmap");
    }
    file->version = VERSION;
    file->vcpus = vcpus;
    memcpy(file->magic, MAGIC, sizeof(file->magic));
    return 0;
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info,
                                 int argc, char **argv)
{
    static const char key[] = "directory=";
    int vcpus = info->system.max_vcpus;

    if (argc != 1 || strncmp(argv[0], key, sizeof(key) - 1)) {
        fprintf(stderr, "vqos: the one argument must be %sPATH\n", key);
        return -1;
    }
    if (snprintf(path, sizeof(path), "%s/%d", argv[0] + sizeof(key) - 1,
                 (int)getpid()) >= (int)sizeof(path)
        || vcpus < 1 || vcpus > MOST_VCPUS) {
        errno = EINVAL;
        return fail("arguments");
    }
    if (prepare() || make_file((uint32_t)vcpus)) {
        return -1;
    }
    qemu_plugin_register_atexit_cb(id, remove_file, NULL);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
