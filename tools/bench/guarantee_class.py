#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the quantum class of a guaranteed server gives, beside pools.

A server that answers requests shares two pCPUs with three that always compute,
whose units need more than one pCPU: no pool can divide them. Prints how long
requests of 2 ms take, which arrive at random (Poisson, an open loop), and for
how long the others run at a time: their caches stay warm as long. The ways,
each in every round:

* quotas, and the kernel's own slices;
* quotas, and all in a pool of class cache, or of class io: its slice is set
  on all;
* quotas, and each the slice of its class;
* reservations, all without a class;
* reservations: one of class io, the others of class cache.

Real QEMU guests, with caps and reservations of a real agent. Says something of
an idle machine only. (On one pCPU of several the kernel reserves nothing.)
"""

from collections.abc import Callable, Iterator
import contextlib
import operator
import os
import statistics
import time
import typing as ty

import lab_host
import latency_guest
import libvirt
import rom_guests

from nova_vqos import policy
from nova_vqos.calibration import host_cpus
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.quantum import classes
from nova_vqos_lab import cgroups
from nova_vqos_lab import noise
from nova_vqos_lab import process

_LIMIT_S = 60
# Until caps, slices and reservations go on evenly.
_SETTLE_S = 2.0
_COMPUTING_CU, _SERVING_CU = (35,) * 3, 25
_SERVES: ty.Final = ('serve-at-random', 20.0, '2000')
_IO_US, _CACHE_US = (classes.RESEARCHED_US[name]
                     for name in ('io', 'cache'))
# Of the server that serves, and of those that compute.
SLICES_US: ty.Final[dict[str, tuple[int | None, int | None]]] = {
    'kernel': (None, None), 'pool of cache': (_CACHE_US, _CACHE_US),
    'pool of io': (_IO_US, _IO_US), 'own slices': (_IO_US, _CACHE_US)}
# Whether servers with reservations have a class.
RESERVED: ty.Final = {'reserved': False, 'reserved, class': True}

#: Who serves, and the threads of all vCPUs, its own first.
Serving: ty.TypeAlias = tuple[latency_guest.LatencyGuest, list[int]]
Running: ty.TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]


class Seen(ty.NamedTuple):
    """What was seen in a while.

    :ivar requests_ms: how long each took
    :ivar run_ms: for how long the others ran at a time, the mean
    :ivar share: of a pCPU that each had, the mean
    """

    requests_ms: list[float]
    run_ms: float
    share: float


@contextlib.contextmanager
def servers(bench: lab_host.BenchHost, *, reserved: bool,
            with_class: bool = True) -> Iterator[Serving]:
    """Servers whose quotas or reservations are in force."""
    connection = libvirt.open(bench.host.libvirt_uri)

    def specs(quantum_class: str) -> dict[str, str]:
        return {
            **({policy.GUARANTEE_KEY: 'required'} if reserved else {}),
            **({policy.QUANTUM_CLASS_KEY: quantum_class} if with_class
               else {})}
    serving = latency_guest.LatencyGuest(
        bench, 'serving', _SERVING_CU, specs('io'), _SERVES)
    made = [serving.domain]
    try:
        process.wait_until(serving.done, _LIMIT_S, 'the first request')
        made += [rom_guests.RomGuest(
            connection, number, rom_guests.Kind(
                busy_units=cu, has_devices=False, spins=True), is_busy=True,
            specs=specs('cache')).domain
            for number, cu in enumerate(_COMPUTING_CU)]
        threads = [bench.vcpu_thread(one.name()) for one in made]
        quotas_cu = [_SERVING_CU, *_COMPUTING_CU]
        assert bench.agent is not None
        process.wait_until(
            (lambda: all(map(deadline.reservation, threads))) if reserved
            else lambda: [bench.quota_cu(one.name())
                          for one in made] == quotas_cu,
            _LIMIT_S, 'reservations' if reserved else 'quotas',
            log=bench.agent.log)
        yield serving, threads
    finally:
        for one in made:
            one.destroy()
        process.wait_until(lambda: not connection.listAllDomains(), _LIMIT_S,
                           'the end of all')


def watch(serving: latency_guest.LatencyGuest, computing: list[int],
          seconds: float) -> Seen:
    first, before = serving.done(), host_cpus.thread_runs(computing)
    began_ns = time.monotonic_ns()
    # The length of the measurement.
    time.sleep(seconds)
    after, took_ns = (host_cpus.thread_runs(computing),
                      time.monotonic_ns() - began_ns)
    ran_ns, runs = (sum(late - early for early, late in zip(
        *(map(operator.attrgetter(name), found) for found in (before, after)),
        strict=True)) for name in ('run_ns', 'runs'))
    return Seen(serving.since_ms(first), ran_ns / 1e6 / max(1, runs),
                ran_ns / took_ns / len(computing))


def rounds(bench: lab_host.BenchHost, noise_running: Running,
           options: lab_host.argparse.Namespace) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {name: [] for name in (*SLICES_US,
                                                          *RESERVED)}
    for number in range(options.rounds):
        lab_host.say(f'round {number + 1} of {options.rounds}')
        bench.start_agent()
        with servers(bench, reserved=False) as (serving, threads):
            # The quotas stay as they are.
            bench.stop_agent()
            for name in [*SLICES_US][::-1 if number % 2 else 1]:
                own_us, others_us = SLICES_US[name]
                sched_attr.set_slice(threads[0], own_us)
                for thread in threads[1:]:
                    sched_attr.set_slice(thread, others_us)
                time.sleep(_SETTLE_S)
                with noise_running():
                    found[name].append(watch(serving, threads[1:],
                                             options.seconds))
        bench.start_guaranteeing_agent()
        for name, with_class in RESERVED.items():
            with servers(bench, reserved=True, with_class=with_class) as (
                    serving, threads):
                time.sleep(_SETTLE_S)
                with noise_running():
                    found[name].append(watch(serving, threads[1:],
                                             options.seconds))
        bench.stop_agent()
    return found


def main() -> None:
    parser = lab_host.argparse.ArgumentParser(
        description=__doc__.split('\n', 1)[0])
    parser.add_argument('--seconds', type=float, default=20.0,
                        help='length of each part of a round '
                        '(default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--noise', type=int, default=0,
                        help='processes that spin beside the guests, with the '
                        'weight of all of them (default: %(default)s)')
    options = parser.parse_args()
    lab_host.prepare()
    with lab_host.started() as bench:
        rom_guests.install_roms(bench)
        latency_guest.install(bench)
        cgroups.weigh_equally(bench.host.hierarchy, bench.host.cgroup)
        with noise.spinners(bench.host, options.noise) as running:
            found = rounds(bench, running, options)
    print(f'Linux {os.uname().release}, {options.rounds} rounds: '
          f'{_SERVING_CU} CU serve, {_COMPUTING_CU} CU compute, two pCPUs, '
          f'{options.noise} spin')
    print('by               median ms   p99 ms   runs for ms  share')
    for name, seen in found.items():
        took_ms = [one for each in seen for one in each.requests_ms]
        print(f'{name:16} {statistics.median(took_ms):9.2f} '
              f'{statistics.quantiles(took_ms, n=100)[98]:8.2f} '
              f'{statistics.median(one.run_ms for one in seen):13.2f} '
              f'{statistics.median(one.share for one in seen):6.3f}')


if __name__ == '__main__':
    main()
