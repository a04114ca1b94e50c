# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_vhost, as root, on the newer kernel.

Has a vCPU and a worker of vhost in the groups of one server, on one pCPU, both
with work that never ends, and prints one JSON object with what each had.
"""

import json
import os
import pathlib
import time
import traceback

from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import probe
from nova_vqos.calibration.probe import spinners
from nova_vqos.calibration.probe import vhost
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.quantum import probe_result

SECONDS = 2
PERIOD_US = 50_000
LIMIT = 0.3
_PCPU = 1


def main():
    # As systemd would, for the first unit that has a weight.
    pathlib.Path('/sys/fs/cgroup/cgroup.subtree_control').write_text('+cpu')
    try:
        found = {'kernel': os.uname().release, 'shares': observe(),
                 'probe': probe_result.document(measure())}
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        found = {'failed': traceback.format_exc()}
    print(json.dumps(found), flush=True)


def measure():
    """What the probe finds, once a pCPU is idle enough."""
    until_s = time.monotonic() + 20
    while True:
        found = vhost.measure()
        if found.limited is not None or time.monotonic() > until_s:
            return found
        time.sleep(1)


def observe():
    """:returns: what the vCPU and the worker had of a pCPU, without a limit,
        with one on all of the server, and with one on the vCPU alone; and with
        one on all other threads of the server, of which one, as QEMU's main
        loop, also has work that never ends
    """
    queue = vhost.Queue()
    with server_groups.Tree(probe.NAME, is_idle=False) as tree:
        server = tree.server('limited')

        def start_worker():
            server.enter(os.getpid())
            server.move_other(os.getpid())
            kept.append(vhost.start_worker(queue))

        def start_vcpu():
            server.enter(os.getpid())
            server.move_vcpu(0, os.getpid())

        kept = []
        with (spinners.process(_PCPU, start_worker, vhost.rest) as owner,
              spinners.process(_PCPU, start_vcpu, spin) as vcpu):
            (worker,) = server.others() - {owner}
            threads = {'vcpu': vcpu, 'vhost': worker}

            def shares():
                vhost.feed(queue, 0.5)
                before, before_s = read(threads), time.monotonic()
                vhost.feed(queue, SECONDS)
                after, length_s = read(threads), time.monotonic() - before_s
                return {name: (after[name] - before[name]) / 1e9 / length_s
                        for name in threads}

            found = {'free': shares()}
            server.limit(round(LIMIT * PERIOD_US), PERIOD_US)
            found['limited'] = shares()
            server.limit(None, PERIOD_US)
            server.limit(round(LIMIT * PERIOD_US), PERIOD_US, vcpu=0)
            found['vcpu limited'] = shares()
            server.limit(None, PERIOD_US, vcpu=0)

            def start_main_loop():
                server.enter(os.getpid())
                server.move_other(os.getpid())

            with spinners.process(_PCPU, start_main_loop, spin) as main_loop:
                threads['main loop'] = main_loop
                found['with main loop'] = shares()
                # As libvirt writes emulator_quota.
                pathlib.Path(
                    f'/sys/fs/cgroup/{probe.NAME}/limited/emulator/cpu.max'
                ).write_text(f'{round(LIMIT * PERIOD_US)} {PERIOD_US}')
                found['emulator limited'] = shares()
    return found


def read(threads):
    return {name: procfs.read_run(thread).run_ns
            for name, thread in threads.items()}


def spin():
    while True:
        pass


if __name__ == '__main__':
    main()
