# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of test_cgroup_v2, as root, on the newer kernel.

Starts libvirtd and QEMU on cgroup v2, does to a domain what nova_vqos does,
and prints one JSON object of what was then seen: the test asserts on that.
The guest's root is the machine's own, read-only; what is written goes to
tmpfs.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import threading
import time
import traceback

import libvirt

from nova_vqos import cputune
from nova_vqos import domain_xml
from nova_vqos import policy
from nova_vqos import primitives
from nova_vqos.agent import heartbeat
from nova_vqos.agent import loop as loops
from nova_vqos.agent import outbox
from nova_vqos.agent import process
from nova_vqos.agent import profile_watch
from nova_vqos.agent.billing import biller as billers
from nova_vqos.billing import account
from nova_vqos.billing import ledger
from nova_vqos.calibration import benchmark
from nova_vqos.calibration.probe import probe
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result
from nova_vqos.tests.host import cgroup_v2_machine

NAME = cgroup_v2_machine.NAME
UUID = cgroup_v2_machine.UUID
CGROUPS = cgroup_v2_machine.CGROUPS
RUN = cgroup_v2_machine.RUN
WAIT_S = cgroup_v2_machine.WAIT_S
SPIN_S = 5
# An emulated pCPU that stands still has the one who runs pay for it later.
WINDOWS = 3
# What a server owes when it starts to be charged: 10 s of all that it may use.
DEBT_CU_US = 600_000_000
PROBES = 10


def main():
    seen = {}
    try:
        seen['probe'] = observe_probe()
        note_uptime(seen, 'probe')
        cgroup_v2_machine.prepare()
        events = []
        with (cgroup_v2_machine.daemon(),
              cgroup_v2_machine.connected_hypervisor(events) as hypervisor):
            connected = libvirt.open('qemu:///system')
            for step in (observe, observe_usage, observe_limits,
                         observe_burst, observe_hook, observe_agent,
                         observe_charge):
                note_uptime(seen, step.__name__)
                step(connected, hypervisor, seen)
            note_uptime(seen, 'end')
            connected.close()
        seen['events'] = sorted({event.kind.value for event in events})
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        seen['failed'] = traceback.format_exc()
        log = RUN / 'libvirtd.log'
        seen['log'] = log.read_text()[-4000:] if log.exists() else ''
    print(json.dumps(seen), flush=True)


def note_uptime(seen, step):
    uptime_s = pathlib.Path('/proc/uptime').read_text().split()[0]
    seen.setdefault('uptime_s', {})[step] = float(uptime_s)
    # On the console: how far it got, should it take too long.
    print(uptime_s, step, file=sys.stderr, flush=True)


def observe_probe():
    """What the probe finds, first without and then with weights for CPUs."""
    try:
        probe.measure(classes.DEFAULT_SLICES_US)
    except benchmark.CalibrationError as error:
        refused = str(error)
    # As systemd would, for the first unit that has a weight.
    (CGROUPS / 'cgroup.subtree_control').write_text('+cpu')
    for _ in range(PROBES):
        found = probe.measure(classes.DEFAULT_SLICES_US)
        if (found.outcomes['cache'].enforced
                and all(outcome.enforced is not None
                        for outcome in found.outcomes.values())):
            break
        # Whatever it was that came in. An emulated pCPU, which shares one with
        # others, also has its ticks late.
        time.sleep(1)
    return {'refused': refused,
            'outcomes': {name: probe_result.document(outcome)
                         for name, outcome in found.outcomes.items()},
            'left': [path.name for path in CGROUPS.iterdir()
                     if path.is_dir()]}


def tune():
    specs = {policy.UNITS_KEY: '60'}
    return cputune.compute(
        policy.parse(specs, 2), cgroup_v2_machine.make_profile(), [0, 1],
        cgroup_version=cputune.host_cgroup_version())


def tuned_domain():
    """The XML of a guest as the driver starts it here."""
    wanted = tune()
    return domain_xml.with_cputune(
        cgroup_v2_machine.DOMAIN.encode(), shares=wanted.shares,
        quota_us=wanted.cap.quota_us, period_us=wanted.cap.period_us).decode()


def cgroup_of(pid):
    line = pathlib.Path(f'/proc/{pid}/cgroup').read_text().strip()
    return CGROUPS / line.removeprefix('0::/')


def domain_cgroup():
    pid = pathlib.Path(f'/run/libvirt/qemu/{NAME}.pid').read_text().strip()
    path = cgroup_of(pid)
    return path.parent if path.name == 'emulator' else path


def in_cgroup():
    """The files of the domain's cgroup: {file: content}."""
    path = domain_cgroup()
    names = ['cpu.max', 'cpu.weight', 'vcpu0/cpu.max', 'vcpu1/cpu.max',
             'emulator/cpu.max', 'vcpu0/cgroup.type']
    return {'path': str(path.relative_to(CGROUPS)), **{
        name: (path / name).read_text().strip() for name in names}}


def in_force(hypervisor):
    found = hypervisor.read(UUID)
    return {'shares': found.shares,
            'domain': [found.domain.quota_us, found.domain.period_us],
            'vcpus': [[limit.quota_us, limit.period_us]
                      for _, limit in sorted(found.vcpus.items())]}


def read_once_noticed(hypervisor, before):
    """What is read as soon as it differs from before, or at last.

    The kernel's word of a write comes in another thread; until then reads are
    answered from memory.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        found = in_force(hypervisor)
        if found != before or time.monotonic() > deadline:
            return found
        time.sleep(0.01)


def cpu_stat(name):
    text = (domain_cgroup() / 'vcpu0' / 'cpu.stat').read_text()
    return dict(line.split() for line in text.splitlines())[name]


def spin():
    """The part of a CPU that the spinning vCPU gets, and its throttling."""
    deadline = time.monotonic() + WAIT_S
    # It spins once its firmware is through, and its burst is used up.
    while int(cpu_stat('nr_throttled')) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    throttled, shares = int(cpu_stat('nr_throttled')), []
    for _ in range(WINDOWS):
        used_us = int(cpu_stat('usage_usec'))
        started = time.monotonic()
        time.sleep(SPIN_S)
        elapsed_s = time.monotonic() - started
        shares.append((int(cpu_stat('usage_usec')) - used_us)
                      / 1e6 / elapsed_s)
    return {'shares': shares, 'share': statistics.median(shares),
            'throttled': int(cpu_stat('nr_throttled')) - throttled}


def attempt(function, *arguments):
    """None, or libvirt's error."""
    try:
        function(*arguments)
    except libvirt.libvirtError as error:
        return str(error)
    return None


def observe(connected, hypervisor, seen):
    seen['kernel'] = pathlib.Path('/proc/version').read_text().split()[2]
    seen['libvirt'] = connected.getLibVersion()
    seen['version'] = cputune.host_cgroup_version()
    seen['wanted'] = {'shares': tune().shares, 'cap': list(tune().cap)}
    seen['hypervisor_version'] = hypervisor.cgroup_version
    note_uptime(seen, 'create')
    domain = connected.createXML(tuned_domain(), 0)
    note_uptime(seen, 'created')
    seen['started'] = in_cgroup()
    hypervisor.running()
    seen['started_read'] = in_force(hypervisor)
    seen['spin'] = spin()

    hypervisor.write(UUID, [base.Change(base.Parameter.QUOTA_US, 40_000),
                            base.Change(base.Parameter.SHARES, 200)])
    seen['recapped'] = in_cgroup()
    seen['recapped_read'] = in_force(hypervisor)
    seen['recapped_xml'] = [
        (name, value) for name, value in sorted(
            domain.schedulerParameters().items())
        if name in ('cpu_shares', 'vcpu_quota', 'vcpu_period')]

    (domain_cgroup() / 'vcpu0' / 'cpu.max').write_text('max 100000')
    seen['tampered_read'] = read_once_noticed(
        hypervisor, seen['recapped_read'])
    hypervisor.write(UUID, [base.Change(base.Parameter.QUOTA_US, 40_000),
                            base.Change(base.Parameter.PERIOD_US, 50_000)])
    seen['restored_read'] = in_force(hypervisor)


def observe_usage(_connected, hypervisor, seen):
    """What the spinning guest uses, as the driver and the kernel count it."""
    # Known by then: below which of the topmost cgroups domains are.
    hypervisor.usages([UUID], {})
    before = usage_now(hypervisor)
    time.sleep(SPIN_S)
    after = usage_now(hypervisor)
    seen['usage'] = {
        'grown': {name: after[name] - before[name] for name in after
                  if name.endswith('_ns')},
        # A reading can take half a second here, and the guest runs on: what
        # the process used from one to the other is at least, and at most ...
        'process_ns': [after['process'][0] - before['process'][1],
                       after['process'][1] - before['process'][0]],
        'busy_ns': [after['busy'][0] - before['busy'][1],
                    after['busy'][1] - before['busy'][0]],
        'runs': [before['run'], after['run']],
        'disks': after['disks'], 'interfaces': after['interfaces']}


def usage_now(hypervisor):
    """What was used until now; `process` and `busy`: as its kernel said just
    before the others were read, and just after, in ns.
    """
    earlier_ns, earlier_busy_ns = process_cpu_ns(), busy_ns()
    found = dataclasses.asdict(hypervisor.usages([UUID], {})[UUID])
    host = dataclasses.asdict(hypervisor.host_usage())
    return found | {f'host_{name}': value for name, value in host.items()} | {
        'process': [earlier_ns, process_cpu_ns()],
        'busy': [earlier_busy_ns, busy_ns()]}


def process_cpu_ns():
    """CPU time of QEMU's process, threads that ended included."""
    pid = pathlib.Path(f'/run/libvirt/qemu/{NAME}.pid').read_text().strip()
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
    fields = stat.rpartition(')')[2].split()
    return ((int(fields[11]) + int(fields[12]))
            * 1_000_000_000 // os.sysconf('SC_CLK_TCK'))


def busy_ns():
    """What all pCPUs did that was not idling or another guest's."""
    ticks = [int(word) for word in pathlib.Path(
        '/proc/stat').read_text().splitlines()[0].split()[1:8]]
    return ((sum(ticks) - sum(ticks[3:5]))
            * 1_000_000_000 // os.sysconf('SC_CLK_TCK'))


def observe_limits(connected, hypervisor, seen):
    domain = connected.lookupByName(NAME)
    set_values = domain.setSchedulerParametersFlags
    seen['minus_one'] = attempt(set_values, {'vcpu_quota': -1}, 1)
    seen['after_minus_one'] = in_cgroup()
    seen['huge'] = attempt(set_values, {'vcpu_quota': 17_592_186_044_415}, 1)
    seen['after_huge'] = in_cgroup()
    hypervisor.write(UUID, [base.Change(base.Parameter.QUOTA_US, 15_000)])
    hypervisor.write(UUID, [base.Change(base.Parameter.QUOTA_US, None)])
    seen['floor'] = in_cgroup()
    seen['floor_read'] = in_force(hypervisor)

    seen['weight_bounds'] = {
        value: attempt(set_values, {'cpu_shares': value}, 1)
        for value in (1, 10_000, 10_001)}
    set_values({'vcpu_quota': 40_000, 'cpu_shares': 60}, 1)
    seen['global_below_vcpu'] = attempt(
        set_values, {'global_period': 50_000, 'global_quota': 30_000}, 1)
    seen['global'] = in_cgroup()
    set_values({'global_quota': 17_592_186_044_415}, 1)


def observe_burst(connected, hypervisor, seen):
    """Another program lets groups of the domain save up quota."""
    domain = connected.lookupByName(NAME)
    set_values = domain.setSchedulerParametersFlags
    set_values({'global_period': 50_000, 'global_quota': 40_000}, 1)
    files = [domain_cgroup() / name / 'cpu.max.burst'
             for name in ('', 'vcpu0', 'vcpu1')]
    for path in files:
        path.write_text('30000')
    seen['burst_refused'] = [
        attempt(set_values, {name: 15_000}, 1)
        for name in ('vcpu_quota', 'global_quota')]
    hypervisor.write(UUID, [
        base.Change(base.Parameter.QUOTA_US, 15_000),
        base.Change(base.Parameter.DOMAIN_QUOTA_US, 20_000)])
    seen['lowered'] = in_cgroup()
    seen['bursts'] = [path.read_text().strip() for path in files]
    hypervisor.write(UUID, [
        base.Change(base.Parameter.DOMAIN_QUOTA_US, None)])


def observe_hook(connected, _hypervisor, seen):
    """A guest with another host's cap comes in from a file."""
    path = str(RUN / 'saved')
    domain = connected.lookupByName(NAME)
    domain.setSchedulerParametersFlags(
        {'vcpu_quota': 50_000, 'cpu_shares': 614}, 1)
    seen['before_save'] = in_cgroup()
    domain.save(path)
    (RUN / 'profile.yaml').unlink()
    cgroup_v2_machine.configure_hook('refuse')
    seen['refused'] = attempt(connected.restore, path)
    cgroup_v2_machine.calibrate()
    (RUN / 'calls').unlink()
    connected.restore(path)
    seen['came_in'] = in_cgroup()
    seen['calls'] = (RUN / 'calls').read_text().splitlines()
    connected.lookupByName(NAME).destroy()
    (RUN / 'profile.yaml').unlink()
    cgroup_v2_machine.configure_hook('pass')
    connected.restore(path)
    seen['passed'] = in_cgroup()


@contextlib.contextmanager
def agent(book=None):
    """The agent's loop, without its RPC.

    :param book: the ledger in which servers are billed; None: nobody is
    """
    cgroup_v2_machine.calibrate()
    hypervisor = driver.LibvirtHypervisor()
    biller = None if book is None else billers.Biller(
        hypervisor, book, outbox.Outbox('v2'), billers.Options(),
        host='v2')
    loop = loops.Loop(
        hypervisor,
        profile_watch.ProfileWatch(
            str(RUN / 'profile.yaml'), 0.05,
            fingerprint=lambda _emulator: (
                cgroup_v2_machine.make_profile().fingerprint)),
        heartbeat.Heartbeat(str(RUN / 'agent.json'), 'v2'),
        process.ServiceManager(), periods=cputune.DEFAULT_PERIODS,
        biller=biller)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    yield loop
    loop.stop()
    thread.join(WAIT_S)


def wait_until(wanted):
    """What is in the cgroup as soon as it fits, or at last."""
    def fits(found):
        return all(found[name] == value for name, value in wanted.items())
    return poll(in_cgroup, fits)


def poll(look, fits):
    """What is seen as soon as it fits, or at last."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = look()
        if fits(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def wait_for_report(loop, *, restored):
    """The agent's report as soon as it has counted that, or at last."""
    return poll(lambda: primitives.to_primitives(loop.host_report()),
                lambda report: report['restored'] >= restored)


def observe_agent(_connected, _hypervisor, seen):
    """The guest that the hook let pass gets its cap, and keeps it."""
    wanted = {'cpu.weight': '60', 'vcpu0/cpu.max': '15000 50000',
              'vcpu1/cpu.max': '15000 50000'}
    with agent() as loop:
        seen['corrected'] = wait_until(wanted)
        seen['agent_before'] = wait_for_report(loop, restored=0)
        path = domain_cgroup()
        (path / 'vcpu1' / 'cpu.max').write_text('max 100000')
        seen['tampered'] = wait_until(wanted)
        (path / 'cpu.weight').write_text('9999')
        seen['tampered_weight'] = wait_until(wanted)
        (path / 'cpu.max').write_text('10000 100000')
        seen['tampered_domain'] = wait_until(
            {**wanted, 'cpu.max': 'max 100000'})
        seen['agent_report'] = wait_for_report(loop, restored=3)
        seen['server_report'] = primitives.to_primitives(
            loop.server_report(UUID))


def observe_charge(connected, _hypervisor, seen):
    """The guest pays for its I/O from now on, and owes something already."""
    # libvirt adds the prefix to the element: not one that it has already.
    connected.lookupByName(NAME).setMetadata(
        libvirt.VIR_DOMAIN_METADATA_ELEMENT,
        cgroup_v2_machine.METADATA % 'charge',
        'nova', cgroup_v2_machine.INSTANCE, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    book = ledger.Ledger(str(RUN / 'lib' / 'ledger.sqlite'))
    book.store([account.Account(UUID, debt_cu_us=DEBT_CU_US)])
    with agent(book) as loop:
        seen['charged'] = wait_until({'cpu.max': '30000 50000'})
        seen['pays'] = poll(in_cgroup, pays)
        before, used_ns = next_bill(loop), process_cpu_ns()
        time.sleep(2 * SPIN_S)
        after, used_ns = next_bill(loop), process_cpu_ns() - used_ns
        seen['bills'] = [before, after]
        seen['used_cu_s'] = used_ns / 1e7
    seen['given_back'] = in_cgroup()


def pays(found):
    """Whether the whole guest may use less than what it was promised."""
    quota = found['cpu.max'].split()[0]
    return quota != 'max' and int(quota) < 28_000


def next_bill(loop):
    """The guest's bill as soon as there is another one, or at last."""
    before = loop.server_report(UUID).bill
    return primitives.to_primitives(poll(
        lambda: loop.server_report(UUID).bill,
        lambda bill: bill is not None and bill != before))


if __name__ == '__main__':
    main()
