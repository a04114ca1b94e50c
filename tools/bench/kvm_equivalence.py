#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether a second of a server's CPU time does as much work on both hosts.

It is the proof of `devstack/lab prove` with real vCPU threads of KVM, and
without an operating system: a server of 40 CU moves live between two hosts,
of which the second is half as fast by its profile, so that its cap there is
twice as long. Both hosts are this machine's CPUs in fact. So a second of CPU
time should do the same work on both, whatever the cap is.

The server counts rounds of a loop in its memory, which is a memfd and is read
from outside. On each host a calibration's guest does the same beside it, on
the same pCPU, at the least weight: it gets what the server's cap leaves.

What was decided before the first run: blocks of ten periods, the first two
seconds on a host not among them; visits of 13 blocks in the order fast, slow,
slow, fast, at least 200 blocks a side; work per CPU second of the server over
that of the calibration's guest, a margin of 1 %, an interval of 95 %. CPU time
must be the cap within 0.3 % in each window of 10 s; the first one may have one
quota more. In windows of 1 s it is shown, not judged: the kernel looks at a
cap once a tick, and 4 ms are 1 % of the cap's 0.4 s. As a control, the visits
to each host are compared with each other in the same way.

What was changed since: the first run had no result, since others' load left
the calibration's guest no CPU time in a block. Now a visit's work is that of
all its blocks by the CPU time of all. Stays are 20 s, so that later windows of
10 s are judged too. The calibration's guest is a new one for each stay, as the
server's QEMU is: with one for the whole run a host's guest was faster or
slower than the server by more than the margin, in all visits alike, and also
where hosts and caps were equal.

Options separate causes: with --slow-speed 1 both caps are equal; --virt-type
qemu emulates the guests; with --clock a clock interrupts them 250 times a
second, as it does a Linux guest. Fewer than eight cycles leave out the
control.

Exits 1 unless both equalities are shown, 2 where it cannot run.
"""

import argparse
from collections.abc import Callable, Iterator
import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
import time

import lab_host
import numpy as np
import work_equivalence as results

from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import equivalence
from nova_vqos_lab import host as hosts
from nova_vqos_lab import kvm
from nova_vqos_lab import meter
from nova_vqos_lab import netns
from nova_vqos_lab import process
from nova_vqos_lab import rom
from nova_vqos_lab import visits

CYCLES = 8
_UNITS = 40
# Of a pCPU of 100 CU.
_QUOTA_US, _PERIOD_US = guests.CAP
_LEAST_SHARES = 2
_ROM = '/var/lib/libvirt/count.rom'
_LIMIT_S = 60
_LEAST_STAY_S = 2 * visits.JUDGED_WINDOW_S
# After the last block, for the samples around its end.
_MARGIN_S = 0.2


def main() -> int:
    options = _options()
    lab_host.prepare()
    if reason := _missing(options.virt_type):
        print(reason, file=sys.stderr)
        return 2
    # What it lacks it says before the minutes that the rest takes.
    draw = _plotter() if options.plot else None
    with _two_hosts(options) as pair:
        found = results.Found(
            {'cycles': options.cycles, 'slow_speed': options.slow_speed,
             'virt_type': options.virt_type, 'clock': options.clock},
            tuple(_stays(pair, options)))
    report = found.report()
    lab_host.save(report, options.json)
    if draw is not None:
        draw(found, options.plot)
    print(json.dumps(report, indent=1) if options.format == 'json'
          else found.table())
    return 0 if found.is_shown else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', 1)[0])
    parser.add_argument(
        '--cycles', type=int, default=CYCLES,
        help='of fast, slow, slow, fast, about 45 s each, at least '
        f'{equivalence.LEAST_CYCLES} (default %(default)s)')
    parser.add_argument(
        '--slow-speed', type=float, default=0.5,
        help='of the second host by its profile, over that of the first, '
        'from 0.4 to 1 (default %(default)s)')
    parser.add_argument('--virt-type', choices=('kvm', 'qemu'), default='kvm')
    parser.add_argument('--clock', action='store_true',
                        help=f'interrupt guests {rom.TICK_HZ} times a second')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--plot', metavar='FILE',
                        help='an SVG file with all visits and windows; needs '
                        'matplotlib')
    options = parser.parse_args()
    if options.cycles < equivalence.LEAST_CYCLES:
        parser.error(f'--cycles must be {equivalence.LEAST_CYCLES} or more')
    if not 0.4 <= options.slow_speed <= 1:
        parser.error('--slow-speed must be from 0.4 to 1')
    return options


def _plotter() -> Callable[[results.Found, str], None]:
    try:
        from nova_vqos_lab import proof_plot
    except ImportError as error:
        raise SystemExit(f'--plot needs matplotlib: {error}') from error
    return proof_plot.write


def _missing(virt_type: str) -> str:
    """:returns: why it cannot run here, '' if it can"""
    found = hosts.missing_requirements(slow=False)
    if len(os.sched_getaffinity(0)) < len(results.HOSTS):
        found.append('two CPUs are needed, one for each host')
    if virt_type == 'kvm' and (reason := kvm.missing()):
        found.append(reason)
    return '; '.join(found)


@contextlib.contextmanager
def _two_hosts(options: argparse.Namespace
               ) -> Iterator[dict[str, hosts.Host]]:
    """Two hosts of one pCPU each, with the hook and a profile."""
    network = netns.Network()
    pcpus = sorted(os.sched_getaffinity(0))
    pair = {name: hosts.Host(name, {pcpu}, counts=False,
                             kvm=options.virt_type == 'kvm')
            for name, pcpu in zip(results.HOSTS, (pcpus[0], pcpus[-1]),
                                  strict=True)}
    speeds = dict(zip(results.HOSTS, (1.0, options.slow_speed), strict=True))
    try:
        network.create()
        for name, host in pair.items():
            host.start()
            agents.store_profile(host, speeds[name])
            agents.install_hook(host)
            with open(host.path(_ROM.lstrip('/')), 'wb') as file:
                file.write(rom.tick() if options.clock
                           else rom.first(rom.COUNT))
        yield pair
    finally:
        # A second signal is not to leave half of it behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for host in pair.values():
            host.remove()
        network.remove()
        shutil.rmtree(lab_host.DIRECTORY, ignore_errors=True)


def _start(host: hosts.Host, options: argparse.Namespace,
           **more: object) -> guests.Guest:
    return guests.Guest(host, rom=_ROM, kind=options.virt_type,
                        shares_memory=True, **more)


def _stays(pair: dict[str, hosts.Host], options: argparse.Namespace
           ) -> Iterator[results.Stay]:
    caps = dict(zip(results.HOSTS, (
        guests.CAP, (round(_QUOTA_US / options.slow_speed), _PERIOD_US)),
        strict=True))
    counts = visits.counts(options.cycles)
    server = _start(pair['fast'], options, cap=guests.CAP,
                    specs=guests.server(_UNITS), shares=guests.SHARES)
    for number, (name, count) in enumerate(zip(
            itertools.cycle(results.HOSTS), counts)):
        host = pair[name]
        with (_calibrations_guest(host, options) as beside,
              _meter(server, host) as measured):
            if number:
                server.migrate(host)
                server.host = host
            cap = server.cap()
            if cap != caps[name]:
                raise process.LabError(
                    f'the cap on {name} is {cap}, not {caps[name]}')
            lab_host.say(f'[{number + 1} of {len(counts)}] on {name}, '
                         'cap {}/{}'.format(*cap))
            yield _measure(name, count, cap, measured, beside)


@contextlib.contextmanager
def _calibrations_guest(host: hosts.Host, options: argparse.Namespace
                        ) -> Iterator[meter.Meter]:
    """One for each stay: no two QEMUs are equally fast."""
    guest = _start(host, options, shares=_LEAST_SHARES)
    try:
        with _meter(guest, host) as measured:
            process.wait_until(lambda: _begun(measured), _LIMIT_S,
                               "the calibration's guest to run")
            yield measured
    finally:
        guest.domain().destroy()


def _meter(guest: guests.Guest, host: hosts.Host) -> meter.Meter:
    return meter.Meter(lambda: meter.of_rom(host, guest.name), guest.name)


def _measure(name: str, count: int, cap: tuple[int, int],
             server: meter.Meter, beside: meter.Meter) -> results.Stay:
    """:param count: of visits, to this host"""
    first_ns = int(process.wait_until(
        lambda: _begun(server), _LIMIT_S, f'the server to run on {name}'
    ).at_ns[0])
    period_us = cap[1]
    visit_ns = visits.VISIT_BLOCKS * visits.block_ns(period_us)
    began_ns = first_ns + visits.SETTLED_NS
    ends_ns = max(began_ns + count * visit_ns,
                  first_ns + _LEAST_STAY_S * 10**9)
    # The length of the measurement.
    time.sleep(max(0, ends_ns - time.monotonic_ns()) / 1e9 + _MARGIN_S)
    series = server.series().from_first_run()
    others = beside.series()
    found = []
    for half in range(count):
        edges_ns = visits.block_edges_ns(began_ns + half * visit_ns,
                                         period_us)
        found.append(results.Visit(*(results.Blocks(
            visits.listed(one.work_between(edges_ns)),
            visits.listed(one.cpu_between_ns(edges_ns)))
            for one in (series, others))))
    return results.Stay(
        name, tuple(found),
        {length_s: visits.cpu_errors(series, cap[0] / cap[1], length_s)
         for length_s in results.WINDOWS_S},
        cap, float(np.diff(series.at_ns).max() / 1e9))


def _begun(server: meter.Meter) -> meter.Series | None:
    """:returns: what was seen since it began; None: it did not yet"""
    try:
        return server.series().from_first_run()
    except process.LabError:
        return None


if __name__ == '__main__':
    sys.exit(main())
