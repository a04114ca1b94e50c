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
"""The part of a kernel that keeps the slices of threads."""

import errno

from nova_vqos.hypervisor import sched_attr

OWN_SLICE_NS = 2_800_000
_KEEP_POLICY = 0x08


class FakeThread:
    """What the scheduler knows of a thread.

    :ivar custom: whether its slice was set
    """

    def __init__(self, policy=0, nice=0, flags=0, slice_ns=OWN_SLICE_NS):
        self.policy = policy
        self.nice = nice
        self.flags = flags
        self.slice_ns = slice_ns
        self.custom = slice_ns != OWN_SLICE_NS


class FakeKernel:
    """Answers sched_getattr(2) and sched_setattr(2) as Linux 6.12 does.

    :ivar threads: by their id
    :ivar reads: how many calls there were to read
    :ivar writes: the ids of threads that were written, in order
    :ivar refuse: by id, the number of the error that a write meets
    :ivar before_write: called with the id before each write
    """

    def __init__(self, monkeypatch, *, has_slices=True):
        self.threads = {}
        self.has_slices = has_slices
        self.own_slice_ns = OWN_SLICE_NS
        self.reads = 0
        self.writes = []
        self.refuse = {}
        self.before_write = lambda _tid: None
        monkeypatch.setattr(sched_attr, '_call', self._call)
        monkeypatch.setattr(sched_attr, '_numbers', lambda: ('set', 'get'))
        monkeypatch.setattr(sched_attr._Default, 'slice_ns', None)

    def add(self, *tids, **what):
        for tid in tids:
            self.threads[tid] = FakeThread(**what)

    def slices_us(self):
        return {tid: thread.slice_ns // 1000
                for tid, thread in self.threads.items()}

    def _call(self, call, tid, attributes, *_rest):
        if call == 'set':
            self.before_write(tid)
        thread = self.threads.get(tid)
        if thread is None:
            return errno.ESRCH
        return getattr(self, f'_{call}')(tid, thread, attributes)

    def _get(self, _tid, thread, attributes):
        self.reads += 1
        attributes.size = 48
        for name in 'policy', 'nice', 'flags':
            setattr(attributes, name, getattr(thread, name))
        attributes.slice_ns = thread.slice_ns if self.has_slices else 0
        return 0

    def _set(self, tid, thread, attributes):
        self.writes.append(tid)
        if tid in self.refuse:
            return self.refuse[tid]
        assert attributes.size == 48
        if attributes.flags & _KEEP_POLICY:
            if thread.policy in (1, 2):
                # No real-time thread has a priority of 0.
                return errno.EINVAL
        else:
            thread.policy = attributes.policy
            thread.flags = attributes.flags
        thread.nice = attributes.nice
        thread.custom = attributes.slice_ns != 0
        thread.slice_ns = (
            min(max(attributes.slice_ns, 100_000), 100_000_000)
            if thread.custom else self.own_slice_ns)
        return 0
