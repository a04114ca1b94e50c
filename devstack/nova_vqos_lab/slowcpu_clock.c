/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded before all other libraries (LD_PRELOAD), makes a program slow
 * evenly: of each second of CPU time of each of its threads, work gets
 * VQOS_SHARE percent, whatever the work is, as on a CPU of a lower clock.
 *
 * A timer on the thread's own CPU clock interrupts it; then the thread does
 * nothing, on the CPU, for as long as its share wants. The kernel looks at
 * such timers at ticks, so that turns take some milliseconds; what is paid for
 * is what was measured, not what the timer was set to.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* At the next tick but for what would hardly have begun. */
#define TURN_NS 1000000

/* QEMU has no use for signals of this kind. */
#define SIGNAL SIGRTMAX

/* NOTE: glibc 2.36 has no public name for it, see sigevent(7). */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define OF_THREAD __thread __attribute__((tls_model("initial-exec")))

typedef int (*create_t)(pthread_t *, const pthread_attr_t *,
                        void *(*)(void *), void *);

struct work {
    void *(*function)(void *);
    void *argument;
};

static OF_THREAD timer_t timer;
/* The thread's CPU time when its present turn began. */
static OF_THREAD int64_t began_ns;

static void fail(const char *what)
{
    /* Unslowed it would be taken for slow. */
    fprintf(stderr, "vqos: the slow host: %s: %s\n", what, strerror(errno));
    _exit(127);
}

static int64_t spent_ns(void)
{
    struct timespec spent;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return spent.tv_sec * (int64_t)1000000000 + spent.tv_nsec;
}

static int start_turn(void)
{
    struct itimerspec once = { .it_value.tv_nsec = TURN_NS };

    return timer_settime(timer, 0, &once, NULL);
}

/* Calls nothing that a signal handler may not. */
static void end_turn(int number)
{
    int error = errno;
    int64_t now_ns = spent_ns();

    (void)number;
    /* What is too much of one turn is too little of the next. */
    began_ns = now_ns + (now_ns - began_ns) * (100 - VQOS_SHARE) / VQOS_SHARE;
    while (spent_ns() < began_ns) {
    }
    start_turn();
    errno = error;
}

static void slow_thread_down(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID,
                              .sigev_signo = SIGNAL };
    sigset_t ours;

    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer)) {
        fail("timer_create");
    }
    /* QEMU's threads begin with all signals blocked. */
    sigemptyset(&ours);
    sigaddset(&ours, SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
    began_ns = spent_ns();
    if (start_turn()) {
        fail("timer_settime");
    }
}

static void release_thread(void *unused)
{
    (void)unused;
    timer_delete(timer);
}

static void *work_slowly(void *given)
{
    struct work work = *(struct work *)given;
    void *result;

    free(given);
    slow_thread_down();
    /* Also when it ends by pthread_exit. */
    pthread_cleanup_push(release_thread, NULL);
    result = work.function(work.argument);
    pthread_cleanup_pop(1);
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*function)(void *), void *argument)
{
    create_t create = (create_t)dlsym(RTLD_NEXT, "pthread_create");
    struct work *work = malloc(sizeof(*work));
    int error;

    if (!create || !work) {
        free(work);
        return EAGAIN;
    }
    *work = (struct work){ function, argument };
    error = create(thread, attributes, work_slowly, work);
    if (error) {
        free(work);
    }
    return error;
}

__attribute__((constructor)) static void slow_down(void)
{
    struct sigaction action = { .sa_handler = end_turn,
                                .sa_flags = SA_RESTART };

    sigfillset(&action.sa_mask);
    if (sigaction(SIGNAL, &action, NULL)) {
        fail("sigaction");
    }
    slow_thread_down();
}
