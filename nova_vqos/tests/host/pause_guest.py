# SPDX-License-Identifier: Apache-2.0
"""Runs in the machine of test_pauses, as root, on the newer kernel.

Its CPU is AMD's. Has guests of KVM leave for several reasons, and prints one
JSON object with what was counted.
"""

import ctypes
import json
import os
import pathlib
import threading
import time
import traceback

from nova_vqos.agent.quantum.sources import base
from nova_vqos.agent.quantum.sources import pause
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import tracepoints
from nova_vqos.tests.host import kvm_vcpu

_UUID = 'd3b1a8c2-0000-4000-8000-000000000001'
_RECORD = '/run/kvm_exit'
_WORK = {'pause': kvm_vcpu.PAUSE, 'out': kvm_vcpu.OUT,
         'cpuid': kvm_vcpu.CPUID}
TIMES = {'pause': 3000, 'out': 200, 'cpuid': 500}


def main():
    try:
        found = observe()
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        found = {'failed': traceback.format_exc()}
    print(json.dumps(found), flush=True)


def observe():
    source = pause.PauseSource(_RECORD)
    found = {'kernel': os.uname().release}
    # tracefs is not mounted yet.
    found['before'] = look(source, 1.0, (os.getpid(),))[1]
    tracing = pathlib.Path(tracepoints.TRACING)
    if ctypes.CDLL(None, use_errno=True).mount(
            b'tracefs', os.fsencode(tracing), b'tracefs', 0, None):
        raise OSError(ctypes.get_errno(), 'mount of tracefs')
    tracepoints.record(tracepoints.KVM_EXIT, _RECORD)
    found['counted'] = {name: count(work, TIMES[name])
                        for name, work in _WORK.items()}
    found['stream'] = stream(tracing)
    found['costs_ns'] = {name: cost_ns(work) for name, work in _WORK.items()
                         if name != 'out'}
    return found


def look(source, now_s, threads):
    """:returns: rates by the number of the thread, and what is missing"""
    rates = source.read(base.Observation(
        now_s, {_UUID: dict(enumerate(threads))}, {}))
    return ({number: sample.spin_events
             for (_, number), sample in rates.items()}, source.available())


def count(work, times):
    """What the source sees of one of two threads that runs a guest."""
    source = pause.PauseSource(_RECORD)
    go, done, seen = threading.Event(), threading.Event(), threading.Event()

    def guest():
        go.wait()
        kvm_vcpu.run(work, times)
        done.set()
        seen.wait()

    thread = threading.Thread(target=guest)
    thread.start()
    try:
        threads = thread.native_id, threading.get_native_id()
        assert look(source, 1.0, threads) == ({}, '')
        go.set()
        done.wait()
        # A second later: rates are counts.
        return look(source, 2.0, threads)
    finally:
        go.set()
        seen.set()
        thread.join()
        source.close()


def stream(tracing):
    """The kernel's own record of exits, as (isa, exit_reason, times)."""
    event = tracing / 'events' / tracepoints.KVM_EXIT
    raw = tracing / 'options/fields'
    if raw.exists():
        raw.write_text('1')
    (tracing / 'trace').write_text('')
    (event / 'enable').write_text('1')
    for name, work in _WORK.items():
        kvm_vcpu.run(work, {'pause': 5, 'out': 3, 'cpuid': 2}[name])
    (event / 'enable').write_text('0')
    return [line for line in (tracing / 'trace').read_text().splitlines()
            if 'kvm_exit' in line]


def cost_ns(work, times=20_000, rounds=5):
    """CPU time of an exit: without, with the event, and with the filter."""
    number = tracepoints.number(tracepoints.KVM_EXIT, _RECORD)
    ways = {'none': None, 'event': '', 'filter': pause.FILTER}
    found = {name: [] for name in ways}
    for _ in range(rounds):
        for name, text in ways.items():
            group = None if text is None else perf.Group(
                [perf.Event(perf.TYPE_TRACEPOINT, number, filter=text)],
                perf.OWN_THREAD)
            began_ns = time.thread_time_ns()
            kvm_vcpu.run(work, times)
            found[name].append((time.thread_time_ns() - began_ns) / times)
            if group is not None:
                group.close()
    return found


if __name__ == '__main__':
    main()
