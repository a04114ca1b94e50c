# SPDX-License-Identifier: Apache-2.0
"""The reader of counters, and the loop that says which domains there are."""

import threading

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import statistics
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits


class Hanging:
    """Domains of which the first reading waits."""

    def __init__(self):
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.ended = False

    def use(self, *_arguments):
        self.reached.set()
        self.go_on.wait(waits.LIMIT_S)
        self.ended = True
        raise base.HypervisorError('gone')


@pytest.fixture
def domains():
    made = Hanging()
    yield made
    made.go_on.set()


def test_the_loop_does_not_wait_for_a_reading(domains, tmp_path):
    reader = statistics.StatisticsReader(None, str(tmp_path), domains, None)

    def read():
        with pytest.raises(AttributeError):
            # There is no session.
            reader.read({fakes.UUID}, {
                fakes.UUID: base.Idle(share=0.02, most_s=30.0)})
    threads = [threading.Thread(target=read),
               threading.Thread(target=reader.retain, args=({fakes.UUID},))]
    threads[0].start()
    assert domains.reached.wait(waits.LIMIT_S)
    threads[1].start()
    threads[1].join()
    assert not domains.ended
    domains.go_on.set()
    threads[0].join()
