/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands where QEMU is on a host, and runs the real one, VQOS_QEMU, with
 * something more: VQOS_PLUGINS, values of its option -plugin, and
 * VQOS_PRELOAD, a library.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef VQOS_PLUGINS
static const char *const plugins[] = { VQOS_PLUGINS };
#define COUNT (sizeof(plugins) / sizeof(plugins[0]))
#else
#define COUNT 0
#endif

int main(int argc, char **argv)
{
    char **wrapped = calloc((size_t)argc + 1 + 2 * COUNT, sizeof(*wrapped));
    char **next = wrapped;

    if (!wrapped) {
        perror("vqos: the host's QEMU");
        return 127;
    }
    *next++ = argv[0];
#ifdef VQOS_PLUGINS
    for (size_t i = 0; i < COUNT; i++) {
        *next++ = "-plugin";
        *next++ = (char *)plugins[i];
    }
#endif
    memcpy(next, argv + 1, (size_t)argc * sizeof(*wrapped));
#ifdef VQOS_PRELOAD
    if (setenv("LD_PRELOAD", VQOS_PRELOAD, 1)) {
        perror("vqos: the host's QEMU");
        return 127;
    }
#endif
    execv(VQOS_QEMU, wrapped);
    fprintf(stderr, "vqos: %s: %s\n", VQOS_QEMU, strerror(errno));
    return 127;
}
