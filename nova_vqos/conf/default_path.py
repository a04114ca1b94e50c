# SPDX-License-Identifier: Apache-2.0
"""Default paths: of options, of command lines and of libvirt's hook.

Imports nothing: libvirt's hook imports it.
"""

#: What a host was calibrated to be, written by nova-vqos-calibrate.
PROFILE = '/etc/nova-vqos/profile.yaml'
#: Result of the last verification of the profile.
VERIFICATION = '/var/lib/nova-vqos-verify/verification.json'
#: Result of nova-vqos-probe: the quantum classes that the kernel enforces.
PROBE_RESULT = '/run/nova-vqos-probe/quantum.json'
#: Number of the tracepoint of KVM's exits, also written by it.
KVM_EXIT = '/run/nova-vqos-probe/kvm_exit'
#: The cpuset partition of servers, measured by nova-vqos-partition.
PARTITION = '/run/nova-vqos-partition/partition.json'

#: Configuration of agent and command lines.
CONFIG = '/etc/nova-vqos/nova-vqos.conf'
#: Configuration of nova-vqos-vendordata, which its user alone may read.
VENDORDATA_CONFIG = '/etc/nova-vqos/vendordata.conf'
#: Heartbeat of the agent.
AGENT_STATE = '/run/nova-vqos/agent.json'
AGENT_LOCK = '/run/nova-vqos/agent.lock'
#: Socket of nova-vqos-helper, made by systemd for the agent's user.
HELPER = '/run/nova-vqos-helper.sock'
#: Directory of files in which emulators count instructions of their guests.
INSTRUCTIONS = '/run/nova-vqos/instructions'
#: Policy overrides that the agent has received.
PUSHED = '/var/lib/nova-vqos/pushed.json'
#: What was measured of servers with vqos:work=auto.
SPEEDS = '/var/lib/nova-vqos/speeds.json'
#: Accounts of billed servers.
LEDGER = '/var/lib/nova-vqos/ledger.sqlite'
#: Latest stats of the compute node, written by the compute driver.
COMPUTE_STATE = '/var/lib/nova/vqos.json'

#: Configuration of libvirt's hook.
HOOK_CONFIG = '/etc/nova-vqos/hook.conf'
#: Directory of libvirt's hooks.
HOOKS = '/etc/libvirt/hooks'
#: The hook below it, late in libvirt's order: no later hook changes the cap.
HOOK_NAME = 'qemu.d/90-nova-vqos'
