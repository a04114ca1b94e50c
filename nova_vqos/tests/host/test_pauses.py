# SPDX-License-Identifier: Apache-2.0
"""Exits for pause loops: tracepoints of this kernel, and real guests of KVM.

The guests run on a machine of its own (newer_machine, pause_guest) whose
emulated CPU has AMD's virtualisation. It has no filter for pause loops, so KVM
lets guests spin: no exit here is one for a pause loop.
"""

import os
import statistics
import subprocess
import sys

import pytest

from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import tracepoints
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import newer_machine

TIMEOUT_S = 400

# Counts how often another user's thread asked for its parent, and called the
# kernel at all.
_COUNT = """
import sys, time
from nova_vqos.hypervisor.linux import perf
thread, number, call = map(int, sys.argv[1:])
events = [perf.Event(perf.TYPE_TRACEPOINT, number, filter=text)
          for text in (f'id == {call}', '')]
try:
    group = perf.Group(events, thread)
except OSError as error:
    print(perf.reason(error, events))
else:
    before = group.read()
    print('ready', flush=True)
    sys.stdin.readline()
    after = group.read()
    print(*(now - then for now, then in zip(after.values, before.values)))
"""
_CALLS = 1000
_CALL = f"""
import os, sys
print(os.getpid(), flush=True)
sys.stdin.readline()
for _ in range({_CALLS}):
    os.getppid()
print('done', flush=True)
sys.stdin.readline()
"""
_GETPPID = {'x86_64': 110, 'aarch64': 173}


@pytest.fixture(scope='module')
def number():
    """Of the tracepoint of system calls."""
    done = subprocess.run(
        ['unshare', '--mount', 'sh', '-c',
         'mount -t tracefs none "$0" && '
         'cat "$0"/events/raw_syscalls/sys_enter/id', tracepoints.TRACING],
        capture_output=True, text=True, check=False, timeout=guests.LIMIT_S)
    if done.returncode:
        requirement.need(f'no tracepoint can be counted: {done.stderr}')
    return int(done.stdout)


def as_user(uid, *capabilities):
    return ['setpriv', f'--reuid={uid}', f'--regid={uid}', '--clear-groups',
            '--no-new-privs', *(
                f'--{kind}=-all{"".join(f",+{one}" for one in capabilities)}'
                for kind in ('inh-caps', 'ambient-caps', 'bounding-set'))]


def start(argv):
    return subprocess.Popen(argv, stdin=subprocess.PIPE, text=True,
                            stdout=subprocess.PIPE)


def go_on(process):
    process.stdin.write('\n')
    process.stdin.flush()


@pytest.mark.parametrize('capability', ['perfmon', 'sys_nice'])
def test_what_it_takes_to_count_in_threads_of_others(
        open_checkout, number, capability):
    call = _GETPPID[os.uname().machine]
    with start([*as_user(1), sys.executable, '-c', _CALL]) as other:
        try:
            thread = other.stdout.readline().strip()
            with start([*as_user(2, capability), sys.executable, '-c', _COUNT,
                        thread, str(number), str(call)]) as counting:
                first = counting.stdout.readline()
                if capability != 'perfmon':
                    assert 'CAP_PERFMON' in first
                    return
                assert first == 'ready\n'
                go_on(other)
                assert other.stdout.readline() == 'done\n'
                go_on(counting)
                parents, calls = map(int, counting.stdout.readline().split())
            assert parents == _CALLS
            assert calls > _CALLS
        finally:
            other.kill()


def test_a_filter_that_does_not_fit_is_said(number):
    events = [perf.Event(perf.TYPE_TRACEPOINT, number,
                         filter='exit_reason == 40')]
    files = len(os.listdir('/proc/self/fd'))
    assert perf.probe(events) == (
        'this kernel has no such tracepoint now, or one with other fields')
    assert len(os.listdir('/proc/self/fd')) == files
    # Nor is there one of this number.
    assert 'no such tracepoint' in perf.probe(
        [perf.Event(perf.TYPE_TRACEPOINT, 999_999)])


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    found = newer_machine.observe(
        'nova_vqos.tests.host.pause_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S, pcpus=1,
        load=(newer_machine.KVM,),
        options=('-icount', 'shift=0', '-cpu', 'EPYC'))
    print(found['kernel'], found['counted'])
    for name, costs in found['costs_ns'].items():
        print(name, {way: statistics.median(ns) for way, ns in costs.items()})
    print(*found['stream'], sep='\n')
    return found


@pytest.mark.nightly
@pytest.mark.timeout(TIMEOUT_S + 60)
class TestGuests:
    @pytest.mark.parametrize('work', ['pause', 'out', 'cpuid'])
    def test_no_other_exit_counts(self, seen, work):
        assert seen['counted'][work] == [{'0': 0, '1': 0}, '']
        # The guest did leave for it: ports and the CPU, in AMD's numbers.
        assert sum('exit_reason=0x7b ' in line
                   for line in seen['stream']) == 3
        assert sum('exit_reason=0x72 ' in line
                   for line in seen['stream']) == 2

    def test_before_there_is_a_tracepoint_it_says_so(self, seen):
        assert 'no tracepoint kvm/kvm_exit' in seen['before']

    def test_what_it_costs_an_exit(self, seen):
        """In instructions: the machine's clock counts these."""
        without, event, filtered = (
            statistics.median(seen['costs_ns']['cpuid'][way])
            for way in ('none', 'event', 'filter'))
        assert without < event < filtered < without + 1000
