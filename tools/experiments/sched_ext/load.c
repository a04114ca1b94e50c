/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that stands for a vCPU, see bench.py:
 *
 *   load spin FILE
 *       uses all CPU time that it gets
 *   load serve FILE INTERVAL_US WORK_US
 *       does so much work after each interval, whether or not it keeps up
 *
 * It stops itself at first, and goes on with SIGCONT. It keeps what it did in
 * FILE, which the bench reads.
 */

#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* As in loads.py. */
enum { PCPUS = 64, MOST = 4096 };

static volatile struct {
	uint64_t cpu_ns[PCPUS];	/* CPU time, by pCPU */
	uint64_t count;		/* of intervals */
	uint64_t late_ns[MOST];	/* it woke so long after each ended */
} *results;

static uint64_t now_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* Work for some microseconds. */
static void work(void)
{
	for (volatile int i = 0; i < 5000; i++)
		;
}

/* Until it has used so much CPU time; 0: for ever. */
static void spin(uint64_t limit_ns)
{
	uint64_t first_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
	uint64_t last_ns = first_ns, ns;
	int before = sched_getcpu(), cpu;

	do {
		work();
		ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
		cpu = sched_getcpu();
		/* It is not known when it moved: meanwhile. */
		results->cpu_ns[before] += (ns - last_ns) / 2;
		results->cpu_ns[cpu] += (ns - last_ns + 1) / 2;
		before = cpu;
		last_ns = ns;
	} while (!limit_ns || ns - first_ns < limit_ns);
}

static void serve(uint64_t interval_ns, uint64_t work_ns)
{
	uint64_t next_ns = now_ns(CLOCK_MONOTONIC), woke_ns;
	struct timespec until;

	for (;;) {
		next_ns += interval_ns;
		until.tv_sec = next_ns / 1000000000;
		until.tv_nsec = next_ns % 1000000000;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		woke_ns = now_ns(CLOCK_MONOTONIC);
		results->late_ns[results->count % MOST] = woke_ns - next_ns;
		results->count++;
		spin(work_ns);
	}
}

int main(int argc, char **argv)
{
	int file;

	if (argc < 3)
		errx(2, "see the head of load.c");
	file = open(argv[2], O_RDWR | O_CREAT, 0600);
	if (file < 0 || ftruncate(file, sizeof(*results)))
		err(1, "%s", argv[2]);
	results = mmap(NULL, sizeof(*results), PROT_READ | PROT_WRITE,
		       MAP_SHARED, file, 0);
	if (results == MAP_FAILED)
		err(1, "%s", argv[2]);
	raise(SIGSTOP);
	if (!strcmp(argv[1], "serve") && argc == 5)
		serve(atoi(argv[3]) * 1000ULL, atoi(argv[4]) * 1000ULL);
	spin(0);
}
