# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_partition, as root, on the newer kernel.

Makes a cpuset partition, has a real agent guarantee a server in it, and prints
one JSON object of what was then seen: the test asserts on that.
"""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback

import libvirt

from nova_vqos import cputune
from nova_vqos import policy
from nova_vqos import primitives
from nova_vqos import units
from nova_vqos.agent import heartbeat
from nova_vqos.agent import loop as loops
from nova_vqos.agent import process
from nova_vqos.agent import profile_watch
from nova_vqos.cmd import partition as program
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import partition
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.tests.host import cgroup_v2_machine

PCPUS = frozenset({1, 2})
ALL_PCPUS = frozenset({0, 1, 2})
CONFIG = cgroup_v2_machine.RUN / 'nova-vqos.conf'
RECORD = cgroup_v2_machine.RUN / 'partition.json'
# The emulated machine's timers are late: what a thread overruns, it pays back
# in the seconds that follow.
WINDOW_S = 20
NOISE = 4
LOST = units.CpuCap(10_000, 50_000)
PARTITION = partition.Partition(PCPUS, str(RECORD))

# Of its two vCPUs the first one spins.
DOMAIN = cgroup_v2_machine.DOMAIN.replace(
    "cpuset='0-1'", "cpuset='1-2'").replace(
        '</n:extraSpecs>',
        f'<n:extraSpec name="{policy.GUARANTEE_KEY}">required</n:extraSpec>'
        '</n:extraSpecs>')


def main():
    seen = {}
    try:
        cgroup_v2_machine.prepare()
        cgroup_v2_machine.calibrate(ALL_PCPUS)
        CONFIG.write_text('[vqos]\nguaranteed_pcpus = 1-2\n')
        with cgroup_v2_machine.daemon():
            connected = connect()
            for step in (observe_none, observe_made, observe_guarantee,
                         observe_others, observe_rebuilt, observe_released):
                print(time.monotonic(), step.__name__, file=sys.stderr,
                      flush=True)
                step(connected, seen)
            connected.close()
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        seen['failed'] = traceback.format_exc()
        log = cgroup_v2_machine.RUN / 'libvirtd.log'
        seen['log'] = log.read_text()[-4000:] if log.exists() else ''
    print(json.dumps(seen), flush=True)


def connect():
    return poll(lambda: attempt(libvirt.open, 'qemu:///system'),
                lambda found: not isinstance(found, str))


def attempt(function, *arguments):
    try:
        return function(*arguments)
    except libvirt.libvirtError as error:
        return str(error)


def poll(look, fits):
    """What is seen as soon as it fits, or at last."""
    limit_s = time.monotonic() + cgroup_v2_machine.WAIT_S
    while True:
        found = look()
        if fits(found) or time.monotonic() > limit_s:
            return found
        time.sleep(0.1)


def run_program(*arguments):
    """:returns: its exit status, and what it printed"""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = program.main(['--config-file', str(CONFIG), '--record',
                               str(RECORD), '-f', 'json', *arguments])
    text = output.getvalue()
    return {'status': status, **(json.loads(text) if text else {})}


@contextlib.contextmanager
def agent():
    """The agent's loop, without its RPC."""
    loop = loops.Loop(
        driver.LibvirtHypervisor(guaranteed_pcpus=PCPUS,
                                 partition_path=str(RECORD)),
        profile_watch.ProfileWatch(
            str(cgroup_v2_machine.RUN / 'profile.yaml'), 0.05,
            fingerprint=lambda _emulator: (
                cgroup_v2_machine.make_profile(ALL_PCPUS).fingerprint)),
        heartbeat.Heartbeat(str(cgroup_v2_machine.RUN / 'agent.json'), 'v2'),
        process.ServiceManager(), periods=cputune.DEFAULT_PERIODS,
        guarantees_speed=True, tick_interval_s=0.25)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop()
        thread.join(cgroup_v2_machine.WAIT_S)


def host_report(loop, fits):
    return poll(lambda: primitives.to_primitives(loop.host_report()), fits)


def observe_none(_connected, seen):
    """What an agent says that finds no partition."""
    with agent() as loop:
        found = host_report(loop, lambda report: any(
            'partition' in alarm for alarm in report['alarms']))
    seen['none'] = {'guarantee': found['guarantee'],
                    'alarms': found['alarms']}


def observe_made(_connected, seen):
    seen['made'] = run_program()
    seen['again'] = run_program()
    # Of a process outside, which could run everywhere before.
    seen['others_pcpus'] = sorted(os.sched_getaffinity(0))
    seen['groups'] = sorted(
        path.name for path in pathlib.Path(PARTITION.path).iterdir()
        if path.is_dir())


@contextlib.contextmanager
def group_of_others():
    """A group of processes in the partition."""
    group = pathlib.Path(PARTITION.path, 'others')
    group.mkdir()
    try:
        yield group
    finally:
        poll(lambda: attempt_rmdir(group), bool)


@contextlib.contextmanager
def noise():
    """Processes that spin in the partition."""
    with group_of_others() as group:
        # By weights alone they would leave next to nothing.
        (group / 'cpu.weight').write_text('10000')
        spinning = [subprocess.Popen([sys.executable, '-c',
                                      'while True: pass'])
                    for _ in range(NOISE)]
        try:
            for one in spinning:
                (group / 'cgroup.procs').write_text(str(one.pid))
            yield
        finally:
            for one in spinning:
                one.kill()
                one.wait()


def attempt_rmdir(path):
    with contextlib.suppress(OSError):
        path.rmdir()
    return not path.exists()


def observe_guarantee(connected, seen):
    """A server beside noise, with its speed guaranteed."""
    with agent() as loop:
        host_report(loop, lambda report: report['guarantee'] is not None)
        connected.createXML(DOMAIN, 0)
        seen['server'] = poll(
            lambda: primitives.to_primitives(
                loop.server_report(cgroup_v2_machine.UUID)),
            lambda server: server is not None and server['guarantee']
            and server['guarantee']['since'] is not None)
        seen['host'] = host_report(
            loop, lambda report: report['guarantee']['reserved_pcpus'] > 0
        )['guarantee']
        tids = vcpu_tids()
        seen['reserved'] = [deadline.reservation(tid) for tid in tids]
        with noise():
            seen['share'] = share(tids[0])
        seen['beside'] = run_program()


def share(tid):
    """:returns: the part of a pCPU that a thread gets for a while"""
    before, began_ns = procfs.read_run(tid), time.monotonic_ns()
    # The length of the measurement.
    time.sleep(WINDOW_S)
    after, ended_ns = procfs.read_run(tid), time.monotonic_ns()
    return (after.run_ns - before.run_ns) / (ended_ns - began_ns)


def vcpu_tids():
    with cgroup_v2_machine.connected_hypervisor([]) as hypervisor:
        hypervisor.running()
        return tuple(hypervisor.vcpu_threads(cgroup_v2_machine.UUID).values())


def observe_others(connected, seen):
    """Others meddle with the partition, and with its server."""
    pathlib.Path(PARTITION.path, 'cpuset.cpus.partition').write_text('member')
    seen['problem'] = PARTITION.problem()
    seen['repaired'] = run_program()
    domain = connected.lookupByName(cgroup_v2_machine.NAME)
    seen['pin'] = attempt(domain.pinVcpu, 0, (False, True, False))
    seen['kept'] = [deadline.reservation(tid) for tid in vcpu_tids()]
    domain.destroy()
    seen['after'] = poll(run_program,
                         lambda found: found['reserved_pcpus'] == 0)


def observe_rebuilt(_connected, seen):
    """The kernel loses time, and finds it again."""
    with group_of_others() as group:
        leaving = subprocess.Popen(
            ['sleep', '1000'], preexec_fn=lambda: (
                group / 'cgroup.procs').write_text('0'))
        # A sleep that nothing ends: a process that has just begun sleeps for
        # an instant whenever it waits for a file.
        leaving.send_signal(signal.SIGSTOP)
        os.waitpid(leaving.pid, os.WUNTRACED)
        deadline.reserve(leaving.pid, LOST)
        # A process that leaves while it sleeps is what loses its time.
        os.sched_setscheduler(leaving.pid, os.SCHED_OTHER, os.sched_param(0))
        leaving.kill()
        leaving.wait()
    time.sleep(1)
    seen['lost'] = run_program()
    seen['rebuilt'] = run_program('--rebuild')


def observe_released(_connected, seen):
    seen['release'] = run_program('--release')
    seen['state'] = pathlib.Path(
        PARTITION.path, 'cpuset.cpus.partition').read_text().strip()
    seen['record'] = RECORD.exists()
    seen['pcpus_after'] = sorted(os.sched_getaffinity(0))


if __name__ == '__main__':
    main()
