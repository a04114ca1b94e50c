// SPDX-License-Identifier: Apache-2.0
/*
 * The work of the guests of guest_locks.py: a process on each vCPU, which all
 * do the same in turns of some time. Prints how often each was done, as
 * "did <what> <times> <seconds>".
 *
 *   guest_locks <vCPUs> <ms>
 *
 *   kernel   lock and unlock a part of a file, of which each process has its
 *            own: the kernel keeps all of them under one spin lock
 *   program  a critical section under a fair lock of the program, which spins
 *   none     about the same work without any lock
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { REST, KERNEL, PROGRAM, NONE, KINDS };
enum { MOST = 16, INSIDE = 30, OUTSIDE = 60, CACHE_LINE = 64 };

static const char *const names[KINDS] = { "", "kernel", "program", "none" };

struct counter {
	volatile long done[KINDS];
	char padding[CACHE_LINE];
};

struct shared {
	volatile int kind;
	volatile unsigned next;
	volatile unsigned owner;
	char padding[CACHE_LINE];
	struct counter counters[MOST];
};

static void compute(int steps)
{
	for (volatile int step = 0; step < steps; step++)
		;
}

static void lock_file(int file, int number)
{
	struct flock part = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET,
		.l_start = 100L * number, .l_len = 10,
	};

	fcntl(file, F_SETLK, &part);
	part.l_type = F_UNLCK;
	fcntl(file, F_SETLK, &part);
}

static void enter(struct shared *shared)
{
	unsigned own = __sync_fetch_and_add(&shared->next, 1);

	while (shared->owner != own)
		__builtin_ia32_pause();
	compute(INSIDE);
	shared->owner = own + 1;
	compute(OUTSIDE);
}

static void work(struct shared *shared, int file, int number)
{
	cpu_set_t own;

	CPU_ZERO(&own);
	CPU_SET(number, &own);
	if (sched_setaffinity(0, sizeof(own), &own))
		exit(1);
	for (;;) {
		int kind = shared->kind;

		if (kind == KERNEL)
			lock_file(file, number);
		else if (kind == PROGRAM)
			enter(shared);
		else if (kind == NONE)
			compute(INSIDE + OUTSIDE);
		else
			usleep(1000);
		shared->counters[number].done[kind]++;
	}
}

static long done(const struct shared *shared, int kind, int vcpus)
{
	long sum = 0;

	for (int number = 0; number < vcpus; number++)
		sum += shared->counters[number].done[kind];
	return sum;
}

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	int vcpus = argc > 2 ? atoi(argv[1]) : 0;
	useconds_t turn_us = argc > 2 ? 1000 * atoi(argv[2]) : 0;
	struct shared *shared = mmap(NULL, sizeof(*shared),
				     PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int file = open("/locked", O_RDWR | O_CREAT, 0600);

	if (vcpus < 1 || vcpus > MOST || shared == MAP_FAILED || file < 0)
		return 1;
	for (int number = 0; number < vcpus; number++)
		if (fork() == 0)
			work(shared, file, number);
	for (int kind = KERNEL;; kind = kind % NONE + 1) {
		long before = done(shared, kind, vcpus);
		double began_s = now_s();

		shared->kind = kind;
		usleep(turn_us);
		printf("did %s %ld %.3f\n", names[kind],
		       done(shared, kind, vcpus) - before, now_s() - began_s);
		fflush(stdout);
		shared->kind = REST;
		usleep(50000);
	}
}
