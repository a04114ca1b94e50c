# SPDX-License-Identifier: Apache-2.0
"""Three ways to give a thread the CPU units that it was promised."""

import dataclasses
from fractions import Fraction
import pathlib
import subprocess
import sys
import time

import loads

from nova_vqos import guarantee
from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.profile import fingerprint

STATE = pathlib.Path('/sys/kernel/sched_ext/state')
_SCHED_EXT = 7
_REFERENCE_CU = 100
# As in credit.bpf.c, of a thread without a class.
_SLICE_US = 10_000
# What ended has its reservation for some of its periods.
_RETRY_S = 3
_ENABLED_S = 30


@dataclasses.dataclass(frozen=True)
class Promise:
    """What a thread is to get.

    :ivar slice_us: of its class; None: it has none
    """

    cu: Fraction
    slice_us: int | None = None
    period_us: int = units.DEFAULT_PERIOD_US

    @property
    def share(self) -> Fraction:
        """Of a pCPU as fast as the reference, which is the slowest here."""
        return self.cu / _REFERENCE_CU

    def cap(self) -> units.CpuCap:
        period_us = self.period_us
        if self.slice_us is not None:
            period_us = units.holding_period_us(
                self.share, self.slice_us, period_us,
                units.DEFAULT_CACHE_MAX_PERIOD_US)
        return units.cap_of_share(self.share, tick_us=fingerprint.tick_us(),
                                  period_us=period_us)


class Quota:
    """CFS quotas and slices: what every server has."""

    name = 'quota'
    #: Whether it needs a partition to keep threads on some pCPUs.
    needs_partition = False

    def apply(self, load: loads.Load, promise: Promise) -> None:
        self.write(load, promise)
        if promise.slice_us is not None:
            sched_attr.set_slice(load.pid, promise.slice_us)

    def write(self, load: loads.Load, promise: Promise) -> None:
        """Write a promise that changed."""
        cap = promise.cap()
        cgroup.write(f'{load.group}/cpu.max',
                     f'{cap.quota_us} {cap.period_us}')


class Guarantee(Quota):
    """A reservation in the deadline class; the quota stays written."""

    name = 'guarantee'
    needs_partition = True

    def apply(self, load: loads.Load, promise: Promise) -> None:
        super().write(load, promise)
        until_s = time.monotonic() + _RETRY_S
        while True:
            try:
                return self._reserve(load, promise)
            except base.ReservationRefused:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)

    def write(self, load: loads.Load, promise: Promise) -> None:
        super().write(load, promise)
        self._reserve(load, promise)

    @staticmethod
    def _reserve(load: loads.Load, promise: Promise) -> None:
        is_short = (promise.slice_us is not None
                    and promise.slice_us < _SLICE_US)
        deadline.reserve(load.pid, guarantee.vcpu_reservation(
            promise.share, 'io' if is_short else 'default',
            tick_us=fingerprint.tick_us()))


class InKernel(Quota):
    """The scheduler of credit.bpf.c; the quota stays written."""

    name = 'sched_ext'

    def __init__(self, bpf_object: str) -> None:
        self.loader = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name(
                'loader.py')), bpf_object],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect_ok()
        until_s = time.monotonic() + _ENABLED_S
        while state() != 'enabled':
            if time.monotonic() > until_s:
                raise SystemExit(f'the scheduler is {state()}')
            time.sleep(0.05)

    def apply(self, load: loads.Load, promise: Promise) -> None:
        self.write(load, promise)
        sched_attr.write(load.pid, sched_attr.Attributes(policy=_SCHED_EXT))

    def write(self, load: loads.Load, promise: Promise) -> None:
        super().write(load, promise)
        slice_us = promise.slice_us or _SLICE_US
        self.write_map('terms', load.pid, round(promise.cu * 1000),
                       slice_us * 1000, promise.cap().period_us * 1000)

    def write_map(self, name: str, key: int, *values: int) -> None:
        """Have the loader write one entry of a map."""
        assert self.loader.stdin is not None
        print(name, key, *values, file=self.loader.stdin, flush=True)
        self._expect_ok()

    def kill(self) -> None:
        self.loader.kill()
        self.loader.wait()

    def _expect_ok(self) -> None:
        assert self.loader.stdout is not None
        if self.loader.stdout.readline() != 'ok\n':
            raise SystemExit('the loader failed: see above')


def state() -> str:
    """Of the kernel's class sched_ext."""
    return STATE.read_text().strip()

