# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""A host's /proc and cgroups in a directory, whose counters a test sets."""

import itertools

PID = 42
_MS_NS = 1_000_000


class FakeHost:
    """One domain, process 42, on cgroups of either version.

    :ivar domain: directory of the domain's CPU time
    :ivar tuned: directory of its limits; another one where the controllers of
        version 1 are mounted apart
    """

    def __init__(self, root, version, path, *, apart=False):
        self.root = root
        self.version = version
        mount = root / 'sys/fs/cgroup'
        names = {1: ('cpu,cpuacct',) * 2, 2: ('',) * 2}[version]
        if apart:
            names = ('cpu', 'cpuacct')
        self.mount = mount / names[1]
        self.domain = self.mount / path
        self.tuned = mount / names[0] / path
        for directory in {self.domain, self.tuned}:
            (directory / 'emulator').mkdir(parents=True)
        lines = {f'{number}:{name}:/{path}/emulator\n'
                 for number, name in enumerate(names, 2)}
        if version == 2:
            (mount / 'cgroup.controllers').write_text('cpu cpuset\n')
            lines = {f'0::/{path}/emulator\n'}
        self.write(f'proc/{PID}/cgroup', '7:memory:/x\n' + ''.join(lines))
        self.write('proc/self/cgroup', ''.join(
            line.partition('/')[0] + '/agent\n' for line in lines))
        self.write('proc/sys/kernel/random/boot_id', 'boot-1\n')
        self.start('1234')
        self.threads()
        self.time('', 0)
        self.time('emulator', 0)

    def write(self, path, text):
        """Write a file of the host, as the kernel would change it."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def start(self, ticks):
        """Have the emulator be one that began at a time."""
        self.write(f'proc/{PID}/comm', 'qemu-system-x86\n')
        self.write(f'proc/{PID}/stat', ' '.join(itertools.chain(
            [f'{PID} (a ) b) S'], ['0'] * 18, [ticks], ['0'] * 5)))

    def time(self, child, used_ms, throttled_ms=0):
        """What a cgroup of the domain counted."""
        for directory in {self.domain / child, self.tuned / child}:
            self.time_of(directory, used_ms, throttled_ms)

    def time_of(self, directory, used_ms, throttled_ms=0):
        directory.mkdir(parents=True, exist_ok=True)
        if self.version == 1:
            (directory / 'cpuacct.usage').write_text(f'{used_ms * _MS_NS}\n')
            (directory / 'cpu.stat').write_text(
                'nr_periods 3\nnr_throttled 1\n'
                f'throttled_time {throttled_ms * _MS_NS}\n')
        else:
            (directory / 'cpu.stat').write_text(
                f'usage_usec {used_ms * 1000}\nuser_usec 0\nsystem_usec 0\n'
                'nr_periods 3\nnr_throttled 1\n'
                f'throttled_usec {throttled_ms * 1000}\n')

    def remove(self, child):
        """Have a cgroup of the domain be gone."""
        for directory in {self.domain / child, self.tuned / child}:
            for file in directory.iterdir():
                file.unlink()
            directory.rmdir()

    def threads(self, *numbers):
        """Which threads the emulator's cgroup lists."""
        self.group('emulator', PID, *numbers)

    def group(self, child, *numbers):
        """A cgroup of the domain, and which threads are in it."""
        name = 'tasks' if self.version == 1 else 'cgroup.threads'
        for directory in {self.domain / child, self.tuned / child}:
            directory.mkdir(exist_ok=True)
            (directory / name).write_text(
                ''.join(f'{number}\n' for number in numbers))

    def thread(self, number, name, used_ms):
        """A thread, and what the scheduler counted of it."""
        self.write(f'proc/{number}/comm', f'{name}\n')
        self.write(f'proc/{number}/schedstat', f'{used_ms * _MS_NS} 5000 7\n')
