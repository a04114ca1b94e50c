// SPDX-License-Identifier: Apache-2.0
//
// What a guest that measures latencies runs, see latency_guest.py:
//
//   latency serve ADDRESS KHZ INTERVAL_US WORK_US
//       requests that arrive at a fixed rate whether or not it keeps up (an
//       open loop); each takes so much work
//   latency serve-at-random ADDRESS KHZ INTERVAL_US WORK_US
//       the same, but they arrive at random, with that interval in the mean
//       (Poisson)
//   latency read ADDRESS KHZ INTERVAL_US DEVICE
//       reads of 4 KiB past the page cache, with a pause after each
//
// Time is that of the TSC, of so many kHz: the clock of an emulated guest that
// had to wait for long was seen to jump by minutes.
//
// How long each took, it keeps in physical memory from ADDRESS on, which the
// kernel leaves alone, and from where the host reads it.

#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <x86intrin.h>

// As in latency_guest.py.
enum { MOST = 4096, BLOCK = 4096, BLOCKS = 2048, MAGIC = 0x76716f73 };

static volatile struct {
    uint32_t magic;
    uint32_t count;
    uint32_t samples_us[MOST];
} *results;

static int64_t tsc_khz;

static int64_t now_us(void)
{
    return __rdtsc() / (tsc_khz / 1000);
}

static void sleep_until(int64_t until_us)
{
    int64_t left_us;

    while ((left_us = until_us - now_us()) > 0)
        usleep(left_us);
}

static void keep(int64_t since_us)
{
    results->samples_us[results->count % MOST] = now_us() - since_us;
    results->count++;
}

static void turn(long turns)
{
    for (volatile long i = 0; i < turns; i++)
        ;
}

static int64_t next_us(int64_t interval_us, bool at_random)
{
    return at_random ? -interval_us * log(1 - drand48()) : interval_us;
}

static void serve(int64_t interval_us, int64_t work_us, bool at_random)
{
    const long chunk = 50000;
    int64_t fastest_us = INT64_MAX;
    long turns;

    // How many turns are the work: by a run that nothing interrupted.
    for (int i = 0; i < 300; i++) {
        int64_t began_us = now_us();

        turn(chunk);
        if (now_us() - began_us < fastest_us)
            fastest_us = now_us() - began_us;
    }
    turns = chunk * work_us / fastest_us;
    for (int64_t arrival_us = now_us();;
         arrival_us += next_us(interval_us, at_random)) {
        sleep_until(arrival_us);
        turn(turns);
        keep(arrival_us);
    }
}

static void read_disk(int64_t interval_us, const char *device)
{
    int disk = open(device, O_RDONLY | O_DIRECT);
    void *block;

    if (disk < 0)
        err(1, "%s", device);
    if (posix_memalign(&block, BLOCK, BLOCK))
        errx(1, "no memory");
    for (;;) {
        int64_t began_us = now_us();

        if (pread(disk, block, BLOCK, random() % BLOCKS * BLOCK) != BLOCK)
            err(1, "%s", device);
        keep(began_us);
        sleep_until(now_us() + interval_us);
    }
}

int main(int argc, char **argv)
{
    int memory;

    if (argc != 6)
        errx(2, "usage: latency serve|serve-at-random|read ADDRESS KHZ "
             "INTERVAL_US WORK_US|DEVICE");
    tsc_khz = atoll(argv[3]);
    memory = open("/dev/mem", O_RDWR);
    if (memory < 0)
        err(1, "/dev/mem");
    results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE, MAP_SHARED,
                   memory, strtoll(argv[2], NULL, 0));
    if (results == MAP_FAILED)
        err(1, "/dev/mem");
    results->count = 0;
    results->magic = MAGIC;
    if (strcmp(argv[1], "read"))
        serve(atoll(argv[4]), atoll(argv[5]), strcmp(argv[1], "serve"));
    read_disk(atoll(argv[4]), argv[5]);
}
