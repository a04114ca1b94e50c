/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands where QEMU is on a host, and runs the real one, VQOS_QEMU, with
 * something more: VQOS_PLUGINS, values of its option -plugin, VQOS_PRELOAD, a
 * library, and VQOS_MORE_RAM, bytes of RAM.
 */

#define _GNU_SOURCE
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

#ifdef VQOS_MORE_RAM
#define BACKEND "memory-backend-"
#define PLAIN "{\"qom-type\":\"" BACKEND "ram\",\"id\":\"pc.ram\",\"size\":"

/* Replaces a number of units and what is around it. */
static void enlarge(char **argument, const char *before, const char *after,
                    unsigned long long unit, const char *with)
{
    const size_t length = strlen(before);
    unsigned long long bytes;
    char *end;

    if (strncmp(*argument, before, length) != 0)
        return;
    bytes = strtoull(*argument + length, &end, 10) * unit + VQOS_MORE_RAM;
    if (end == *argument + length || strcmp(end, after) != 0)
        return;
    if (asprintf(argument, "%s%llu%s", before, bytes, with) < 0) {
        perror("vqos: the host's QEMU");
        exit(127);
    }
}

/* Whether this is all that is said of the memory: where, and how large. */
static int is_plain(const char *object)
{
    const size_t length = strlen(PLAIN);

    if (strncmp(object, PLAIN, length) != 0)
        return 0;
    object += length;
    return strcmp(object + strspn(object, "0123456789"), "}") == 0;
}

/*
 * libvirt gives the size of RAM as -m and, unless it is an older one, once more
 * as that of an object. Where there are several objects, or one of a file, of
 * huge pages or with more options, all stays as it is.
 */
static void enlarge_ram(char **arguments)
{
    for (char **one = arguments; *one; one++)
        if (strstr(*one, BACKEND) && !is_plain(*one))
            return;
    for (char **one = arguments; one[0] && one[1]; one++) {
        if (strcmp(one[0], "-m") == 0) {
            enlarge(&one[1], "", "", 1ULL << 20, "B");
            enlarge(&one[1], "size=", "k", 1ULL << 10, "B");
        } else if (strcmp(one[0], "-object") == 0) {
            enlarge(&one[1], PLAIN, "}", 1, "}");
        }
    }
}
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
#ifdef VQOS_MORE_RAM
    enlarge_ram(next);
#endif
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
