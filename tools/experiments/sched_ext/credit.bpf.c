/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * An experiment: caps in CPU units, kept by a scheduler of the kernel's class
 * sched_ext. See bench.py, which measures it.
 *
 * It schedules the threads of policy SCHED_EXT alone. Each has a credit in CU,
 * which grows at the rate of its entitlement. A run takes from it at the speed
 * of the pCPU that it was on. A thread without credit is parked; it goes on
 * once it can run for its share of a period. So a debt needs no clock of its
 * own: it is a credit below 0, whoever took from it.
 *
 * Threads that are ready wait in one queue, by deadline: a slice after they
 * became ready. So a thread with a short slice goes before one with a long
 * slice, and preempts it when it wakes; and none waits for ever.
 *
 * Written for Linux 7.3, whose numbers and functions are declared here.
 */

#include <stdbool.h>
#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* The members that are used; the loader finds where this kernel has them. */
#define RELOCATED __attribute__((preserve_access_index))
struct cpumask {
	__u64 bits[1];
} RELOCATED;
struct sched_ext_entity {
	__u32 flags;
	__u64 dsq_vtime;
} RELOCATED;
struct task_struct {
	int pid;
	const struct cpumask *cpus_ptr;
	struct sched_ext_entity scx;
} RELOCATED;
struct net_device {
	int ifindex;
} RELOCATED;
struct sk_buff;
struct scx_exit_task_args;
struct bpf_iter_scx_dsq {
	__u64 opaque[6];
};

/* From kernel/sched/ext/. */
#define SCX_OPS_ENQ_LAST 2
#define SCX_OPS_SWITCH_PARTIAL 8
#define SCX_DSQ_LOCAL (1ULL << 63 | 2)
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_KICK_IDLE 1
#define SCX_KICK_PREEMPT 2
#define SCX_TASK_QUEUED 1

struct sched_ext_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 prev_cpu, __u64 flags);
	void (*enqueue)(struct task_struct *p, __u64 flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*exit_task)(struct task_struct *p,
			  struct scx_exit_task_args *args);
	__s32 (*init)(void);
	__u64 flags;
	__u32 timeout_ms;
	char name[128];
};

extern __s32 scx_bpf_create_dsq(__u64 dsq, __s32 node) __ksym;
extern __s32 scx_bpf_select_cpu_dfl(struct task_struct *p, __s32 prev_cpu,
				    __u64 flags, bool *is_idle) __ksym;
extern void scx_bpf_dsq_insert(struct task_struct *p, __u64 dsq, __u64 slice,
			       __u64 flags) __ksym;
extern void scx_bpf_dsq_insert_vtime(struct task_struct *p, __u64 dsq,
				     __u64 slice, __u64 vtime,
				     __u64 flags) __ksym;
extern bool scx_bpf_dsq_move_to_local(__u64 dsq) __ksym;
extern bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it,
				   struct task_struct *p, __u64 dsq,
				   __u64 flags) __ksym;
extern void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it,
				       __u64 slice) __ksym;
extern void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it,
				       __u64 vtime) __ksym;
extern bool scx_bpf_task_set_slice(struct task_struct *p, __u64 slice) __ksym;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) __ksym;
extern __s32 scx_bpf_pick_idle_cpu(const struct cpumask *allowed,
				   __u64 flags) __ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
extern int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, __u64 dsq,
				__u64 flags) __ksym;
extern struct task_struct *bpf_iter_scx_dsq_next(
	struct bpf_iter_scx_dsq *it) __ksym;
extern void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
extern bool bpf_cpumask_test_cpu(__u32 cpu,
				 const struct cpumask *mask) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

#define MS_NS 1000000ULL
#define TIMER_NS MS_NS
#define MOST_PCPUS 64
#define MOST_THREADS 4096
/* A thread that the loader was not given terms of runs in turns of that. */
#define STRANGER_SLICE_NS (4 * MS_NS)
/* A thread that slept keeps no more credit than it earns in that time; one
 * that waits for a pCPU keeps what it is owed. */
#define SLEEPERS_CREDIT_NS (50 * MS_NS)
#define WAITERS_CREDIT_NS (1000 * MS_NS)
#define REFERENCE_MCU 100000

/* Ready to run, and without credit. */
enum { READY, PARKED };

/* The loader writes these. Speeds are in thousandths of a CU (mCU). */
struct terms {
	__u64 rate_mcu;
	__u64 slice_ns;
	__u64 period_ns;
};

/* Of a thread; only what is here writes it. */
struct account {
	__s64 credit;		/* mCU times ns */
	__u64 refilled_ns;	/* when what it earned was last added */
	__u64 charged_ns;	/* until when its current run was charged */
	__s64 turn_ns;		/* that are left of its slice */
	__u64 deadline_ns;	/* of that turn */
};

/* What runs on a pCPU; slice_ns is 0 where no thread of ours does. */
struct run {
	__u64 ends_ns;
	__u64 slice_ns;
	__u64 preempted_ns;
};

/* A thread pays for each packet that is handed to an interface. */
struct tap {
	__u64 cost;		/* mCU times ns a packet */
	__u32 tid;
	__u32 unused;
};

struct settings {
	__u64 stalls;		/* for a test of the kernel's watchdog */
	__u64 preempts_every_ns;	/* a pCPU, and no sooner */
};

struct timer {
	struct bpf_timer timer;
};

#define MAP(name_, type_, entries_, key_, value_)	\
	struct {					\
		__uint(type, type_);			\
		__uint(max_entries, entries_);		\
		__type(key, key_);			\
		__type(value, value_);			\
	} name_ SEC(".maps")

MAP(terms, BPF_MAP_TYPE_HASH, MOST_THREADS, __u32, struct terms);
MAP(accounts, BPF_MAP_TYPE_HASH, MOST_THREADS, __u32, struct account);
MAP(taps, BPF_MAP_TYPE_HASH, MOST_THREADS, __u32, struct tap);
MAP(speeds, BPF_MAP_TYPE_ARRAY, MOST_PCPUS, __u32, __u64);
MAP(runs, BPF_MAP_TYPE_ARRAY, MOST_PCPUS, __u32, struct run);
MAP(settings, BPF_MAP_TYPE_ARRAY, 1, __u32, struct settings);
MAP(timers, BPF_MAP_TYPE_ARRAY, 1, __u32, struct timer);

static __always_inline struct settings *the_settings(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&settings, &only);
}

static __always_inline bool stalls(void)
{
	struct settings *found = the_settings();

	return found && found->stalls;
}

static __always_inline __u64 speed_mcu(__u32 cpu)
{
	__u64 *found = bpf_map_lookup_elem(&speeds, &cpu);

	return found && *found ? *found : REFERENCE_MCU;
}

static __always_inline struct account *account_of(__u32 tid, __u64 now_ns)
{
	struct account first = { .refilled_ns = now_ns };
	struct account *found = bpf_map_lookup_elem(&accounts, &tid);

	if (found)
		return found;
	bpf_map_update_elem(&accounts, &tid, &first, BPF_NOEXIST);
	return bpf_map_lookup_elem(&accounts, &tid);
}

/* Add what a thread earned, up to what it earns in so much time. */
static __always_inline void refill(struct account *account, __u64 rate_mcu,
				   __u64 now_ns, __u64 kept_ns)
{
	__s64 most = rate_mcu * kept_ns, credit;
	__u64 last_ns = account->refilled_ns;

	if (now_ns <= last_ns)
		return;
	/* Another pCPU may do the same. */
	if (__sync_val_compare_and_swap(&account->refilled_ns, last_ns,
					now_ns) == last_ns)
		__sync_fetch_and_add(&account->credit,
				     rate_mcu * (now_ns - last_ns));
	credit = account->credit;
	if (credit > most)
		__sync_val_compare_and_swap(&account->credit, credit, most);
}

/* How long a thread may run on, which earns while it does. */
static __always_inline __u64 allowed_ns(struct account *account,
					__u64 rate_mcu, __u64 pcpu_mcu)
{
	__s64 credit = account->credit, turn_ns = account->turn_ns;
	__u64 lasts_ns;

	if (credit <= 0 || turn_ns <= 0)
		return 0;
	if (pcpu_mcu <= rate_mcu)
		return turn_ns;
	lasts_ns = (__u64)credit / (pcpu_mcu - rate_mcu);
	if (lasts_ns > (__u64)turn_ns)
		return turn_ns;
	/* A slice of 0 means something else. */
	return lasts_ns ? lasts_ns : 1;
}

/* Take what a thread used since it was last charged. */
static __always_inline void charge(struct account *account, __u64 pcpu_mcu,
				   __u64 now_ns)
{
	__u64 since_ns = account->charged_ns;

	account->charged_ns = now_ns;
	if (!since_ns || now_ns <= since_ns)
		return;
	__sync_fetch_and_add(&account->credit,
			     -(__s64)((now_ns - since_ns) * pcpu_mcu));
	account->turn_ns -= now_ns - since_ns;
}

static __always_inline void begin_turn(struct account *account,
				       __u64 slice_ns, __u64 now_ns)
{
	account->turn_ns = slice_ns;
	account->deadline_ns = now_ns + slice_ns;
}

/* When a parked thread can run for its share of a period: it earns in the
 * rest of the period what it then uses beyond its rate. */
static __always_inline __u64 resumes_ns(struct account *account,
					struct terms *terms, __u64 pcpu_mcu,
					__u64 now_ns)
{
	__u64 rate_mcu = terms->rate_mcu ? terms->rate_mcu : 1;
	__s64 lacks = -account->credit;

	if (rate_mcu < pcpu_mcu)
		lacks += rate_mcu * (terms->period_ns - terms->period_ns
				     * rate_mcu / pcpu_mcu);
	return lacks > 0 ? now_ns + (__u64)lacks / rate_mcu : now_ns;
}

/* Have one pCPU that runs a longer slice look for what is ready. */
static __always_inline void preempt_longer(struct task_struct *p,
					   __u64 slice_ns, __u64 now_ns)
{
	struct settings *found = the_settings();
	__u32 cpu, key;
	struct run *run;

	if (!found)
		return;
	for (cpu = 0; cpu < MOST_PCPUS; cpu++) {
		/* The verifier believes that a look-up may change its key. */
		key = cpu;
		run = bpf_map_lookup_elem(&runs, &key);
		if (!run)
			return;
		if (run->slice_ns <= slice_ns ||
		    now_ns < run->preempted_ns + found->preempts_every_ns ||
		    !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		run->preempted_ns = now_ns;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		return;
	}
}

SEC("struct_ops/select_cpu")
__s32 BPF_PROG(credit_select_cpu, struct task_struct *p, __s32 prev_cpu,
	       __u64 flags)
{
	bool is_idle = false;

	return scx_bpf_select_cpu_dfl(p, prev_cpu, flags, &is_idle);
}

SEC("struct_ops/enqueue")
void BPF_PROG(credit_enqueue, struct task_struct *p, __u64 flags)
{
	__u64 now_ns = bpf_ktime_get_ns(), pcpu_mcu, slice_ns;
	bool wakes = flags & SCX_ENQ_WAKEUP;
	struct account *account;
	struct terms *found;
	__u32 tid = p->pid;

	found = bpf_map_lookup_elem(&terms, &tid);
	account = found ? account_of(tid, now_ns) : NULL;
	if (!account) {
		if (flags & SCX_ENQ_LAST)
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL,
					   STRANGER_SLICE_NS, flags);
		else
			scx_bpf_dsq_insert_vtime(p, READY, STRANGER_SLICE_NS,
						 now_ns + STRANGER_SLICE_NS,
						 flags);
		return;
	}
	pcpu_mcu = speed_mcu(scx_bpf_task_cpu(p));
	refill(account, found->rate_mcu, now_ns,
	       wakes ? SLEEPERS_CREDIT_NS : WAITERS_CREDIT_NS);
	if (account->credit <= 0) {
		account->turn_ns = 0;
		scx_bpf_dsq_insert_vtime(
			p, PARKED, MS_NS,
			resumes_ns(account, found, pcpu_mcu, now_ns), flags);
		return;
	}
	/* One that was preempted keeps the rest of its turn, but not the
	 * deadline: it would go before what preempted it. */
	begin_turn(account, wakes || account->turn_ns <= 0
		   ? found->slice_ns : (__u64)account->turn_ns, now_ns);
	slice_ns = allowed_ns(account, found->rate_mcu, pcpu_mcu);
	if (flags & SCX_ENQ_LAST) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, flags);
		return;
	}
	scx_bpf_dsq_insert_vtime(p, READY, slice_ns, account->deadline_ns,
				 flags);
	if (wakes)
		preempt_longer(p, found->slice_ns, now_ns);
}

SEC("struct_ops/dispatch")
void BPF_PROG(credit_dispatch, __s32 cpu, struct task_struct *prev)
{
	__u64 now_ns = bpf_ktime_get_ns(), pcpu_mcu, slice_ns;
	struct account *account;
	struct terms *found;
	struct run *run;
	__u32 tid, index = cpu;

	if (stalls() || scx_bpf_dsq_move_to_local(READY))
		return;
	/* What ran until now goes on where nothing else is ready. */
	if (!prev || !(prev->scx.flags & SCX_TASK_QUEUED))
		return;
	tid = prev->pid;
	found = bpf_map_lookup_elem(&terms, &tid);
	account = bpf_map_lookup_elem(&accounts, &tid);
	run = bpf_map_lookup_elem(&runs, &index);
	if (!found || !account || !run)
		return;
	pcpu_mcu = speed_mcu(index);
	charge(account, pcpu_mcu, now_ns);
	refill(account, found->rate_mcu, now_ns, WAITERS_CREDIT_NS);
	if (account->turn_ns <= 0)
		begin_turn(account, found->slice_ns, now_ns);
	slice_ns = allowed_ns(account, found->rate_mcu, pcpu_mcu);
	if (!slice_ns)
		return;
	scx_bpf_task_set_slice(prev, slice_ns);
	run->ends_ns = now_ns + slice_ns;
}

SEC("struct_ops/running")
void BPF_PROG(credit_running, struct task_struct *p)
{
	__u32 tid = p->pid, cpu = scx_bpf_task_cpu(p);
	__u64 now_ns = bpf_ktime_get_ns();
	struct account *account = bpf_map_lookup_elem(&accounts, &tid);
	struct terms *found = bpf_map_lookup_elem(&terms, &tid);
	struct run *run = bpf_map_lookup_elem(&runs, &cpu);

	if (!account || !found || !run)
		return;
	account->charged_ns = now_ns;
	/* It waited, and may be on a pCPU of another speed than thought. */
	refill(account, found->rate_mcu, now_ns, WAITERS_CREDIT_NS);
	run->ends_ns = now_ns + allowed_ns(account, found->rate_mcu,
					   speed_mcu(cpu));
	run->slice_ns = found->slice_ns;
}

SEC("struct_ops/stopping")
void BPF_PROG(credit_stopping, struct task_struct *p, bool runnable)
{
	__u32 tid = p->pid, cpu = scx_bpf_task_cpu(p);
	struct account *account = bpf_map_lookup_elem(&accounts, &tid);
	struct run *run = bpf_map_lookup_elem(&runs, &cpu);

	if (account) {
		charge(account, speed_mcu(cpu), bpf_ktime_get_ns());
		account->charged_ns = 0;
	}
	if (run)
		run->ends_ns = run->slice_ns = 0;
}

SEC("struct_ops/exit_task")
void BPF_PROG(credit_exit_task, struct task_struct *p,
	      struct scx_exit_task_args *args)
{
	__u32 tid = p->pid;

	bpf_map_delete_elem(&accounts, &tid);
	bpf_map_delete_elem(&terms, &tid);
}

/* Hand a thread that was parked to a pCPU, once it has credit. */
static __always_inline void resume(struct bpf_iter_scx_dsq *parked,
				   struct task_struct *p, __u64 now_ns)
{
	struct account *account;
	struct terms *found;
	__u32 tid = p->pid;
	__s32 idle;

	found = bpf_map_lookup_elem(&terms, &tid);
	account = bpf_map_lookup_elem(&accounts, &tid);
	if (!found || !account)
		return;
	refill(account, found->rate_mcu, now_ns, WAITERS_CREDIT_NS);
	if (account->credit <= 0)
		return;
	begin_turn(account, found->slice_ns, now_ns);
	scx_bpf_dsq_move_set_slice(parked, allowed_ns(
		account, found->rate_mcu, speed_mcu(scx_bpf_task_cpu(p))));
	scx_bpf_dsq_move_set_vtime(parked, account->deadline_ns);
	scx_bpf_dsq_move_vtime(parked, p, READY, 0);
	/* It preempts nothing: it had its share of the last period. */
	idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (idle >= 0)
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
}

static int on_timer(void *map, int *only, struct bpf_timer *timer)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct bpf_iter_scx_dsq parked;
	struct task_struct *p;
	struct run *run;
	__u32 cpu, key;

	if (stalls())
		goto again;
	bpf_rcu_read_lock();
	bpf_iter_scx_dsq_new(&parked, PARKED, 0);
	while ((p = bpf_iter_scx_dsq_next(&parked))) {
		if (p->scx.dsq_vtime > now_ns)
			break;
		resume(&parked, p, now_ns);
	}
	bpf_iter_scx_dsq_destroy(&parked);
	bpf_rcu_read_unlock();
	/* The kernel itself ends a slice at its tick only; here the nearest
	 * millisecond does. */
	for (cpu = 0; cpu < MOST_PCPUS; cpu++) {
		key = cpu;
		run = bpf_map_lookup_elem(&runs, &key);
		if (run && run->ends_ns &&
		    run->ends_ns <= now_ns + TIMER_NS / 2)
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
again:
	bpf_timer_start(timer, TIMER_NS, 0);
	return 0;
}

SEC("struct_ops/init")
__s32 BPF_PROG(credit_init)
{
	__u32 only = 0;
	struct timer *timer;
	__s32 failed;

	/* NOTE: without a use of it, clang would only declare the structure,
	 * and libbpf would not find that the functions fit the kernel's. */
	if (!bpf_core_type_exists(struct cpumask))
		return -1;
	failed = scx_bpf_create_dsq(READY, -1);
	if (!failed)
		failed = scx_bpf_create_dsq(PARKED, -1);
	if (failed)
		return failed;
	timer = bpf_map_lookup_elem(&timers, &only);
	if (!timer)
		return -1;
	/* CLOCK_MONOTONIC */
	failed = bpf_timer_init(&timer->timer, &timers, 1);
	if (!failed)
		failed = bpf_timer_set_callback(&timer->timer, on_timer);
	return failed ? failed : bpf_timer_start(&timer->timer, TIMER_NS, 0);
}

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(credit_packet, struct sk_buff *skb, int rc,
	     struct net_device *dev)
{
	__u32 index = dev->ifindex;
	struct tap *tap = bpf_map_lookup_elem(&taps, &index);
	struct account *account;

	if (!tap)
		return 0;
	account = bpf_map_lookup_elem(&accounts, &tap->tid);
	if (account)
		__sync_fetch_and_add(&account->credit, -(__s64)tap->cost);
	return 0;
}

SEC(".struct_ops")
struct sched_ext_ops credit = {
	.select_cpu = (void *)credit_select_cpu,
	.enqueue = (void *)credit_enqueue,
	.dispatch = (void *)credit_dispatch,
	.running = (void *)credit_running,
	.stopping = (void *)credit_stopping,
	.exit_task = (void *)credit_exit_task,
	.init = (void *)credit_init,
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_SWITCH_PARTIAL,
	.timeout_ms = 3000,
	.name = "credit",
};

/* The kernel lets only programs under the GPL schedule. */
char _license[] SEC("license") = "GPL";
