/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands where QEMU is on a slow host, and runs the real one, VQOS_QEMU, with
 * what slows it down: VQOS_PLUGIN, a TCG plugin, or VQOS_PRELOAD, a library.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char **wrapped = calloc((size_t)argc + 3, sizeof(*wrapped));

    if (!wrapped) {
        perror("vqos: the slow host's QEMU");
        return 127;
    }
    wrapped[0] = argv[0];
#ifdef VQOS_PLUGIN
    wrapped[1] = "-plugin";
    wrapped[2] = "file=" VQOS_PLUGIN;
    memcpy(wrapped + 3, argv + 1, (size_t)argc * sizeof(*wrapped));
#else
    memcpy(wrapped + 1, argv + 1, (size_t)argc * sizeof(*wrapped));
    if (setenv("LD_PRELOAD", VQOS_PRELOAD, 1)) {
        perror("vqos: the slow host's QEMU");
        return 127;
    }
#endif
    execv(VQOS_QEMU, wrapped);
    fprintf(stderr, "vqos: %s: %s\n", VQOS_QEMU, strerror(errno));
    return 127;
}
