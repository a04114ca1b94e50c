/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * Attributes softirq time to the interface that a packet is handed to.
 *
 * A packet's time begins when the stack takes it from a driver or a backlog
 * (netif_receive_skb), and ends when it was handed to an interface
 * (net_dev_xmit), all within one softirq. Packets that are not handed on leave
 * nothing: their time ends with the next one's beginning.
 *
 * The kernel lets only programs under the GPL read its structures.
 */

#include <linux/types.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* From include/linux/interrupt.h. */
#define NET_TX_SOFTIRQ 2
#define NET_RX_SOFTIRQ 3

/* The members that are read; the loader finds where this kernel has them. */
#define RELOCATED __attribute__((preserve_access_index))
struct ns_common {
	unsigned int inum;
} RELOCATED;
struct net {
	struct ns_common ns;
} RELOCATED;
typedef struct {
	struct net *net;
} RELOCATED possible_net_t;
struct net_device {
	int ifindex;
	possible_net_t nd_net;
} RELOCATED;
struct sk_buff;

/* An index means an interface within its network namespace only. */
struct interface {
	__u32 namespace;
	__u32 index;
};

struct work {
	__u64 ns;
	__u64 packets;
};

/* Of a CPU; times are 0 where it is in no softirq of the network. */
struct cpu {
	__u64 entered_ns;	/* the softirq */
	__u64 began_ns;		/* the current packet's time */
	__u64 softirq_ns;	/* all softirqs so far */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct interface);
	__type(value, struct work);
} caused SEC(".maps");

static __always_inline struct cpu *this_cpu(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&cpus, &only);
}

static __always_inline int is_of_network(unsigned int vec)
{
	return vec == NET_TX_SOFTIRQ || vec == NET_RX_SOFTIRQ;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(enter, unsigned int vec)
{
	struct cpu *cpu;

	if (!is_of_network(vec))
		return 0;
	cpu = this_cpu();
	if (cpu)
		cpu->entered_ns = cpu->began_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(leave, unsigned int vec)
{
	struct cpu *cpu;

	if (!is_of_network(vec))
		return 0;
	cpu = this_cpu();
	/* Tracing may have begun within the softirq. */
	if (cpu && cpu->entered_ns)
		cpu->softirq_ns += bpf_ktime_get_ns() - cpu->entered_ns;
	if (cpu)
		cpu->entered_ns = cpu->began_ns = 0;
	return 0;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(receive)
{
	struct cpu *cpu = this_cpu();

	if (cpu && cpu->entered_ns)
		cpu->began_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(hand_over, struct sk_buff *skb, int rc, struct net_device *dev)
{
	struct cpu *cpu = this_cpu();
	struct work first = {}, *found;
	struct interface key;
	__u64 now_ns;

	if (!cpu || !cpu->entered_ns)
		return 0;
	now_ns = bpf_ktime_get_ns();
	key.namespace = dev->nd_net.net->ns.inum;
	key.index = dev->ifindex;
	found = bpf_map_lookup_elem(&caused, &key);
	if (!found) {
		bpf_map_update_elem(&caused, &key, &first, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&caused, &key);
	}
	if (found) {
		found->ns += now_ns - cpu->began_ns;
		found->packets++;
	}
	/* What is sent next without being received: copies, a queue. */
	cpu->began_ns = now_ns;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
