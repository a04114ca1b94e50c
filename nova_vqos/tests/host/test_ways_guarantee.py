# SPDX-License-Identifier: Apache-2.0
"""Ways to change a server whose speed is guaranteed, by a real kernel."""

import contextlib
import threading
import time

import pytest

from nova_vqos import units
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import busy_guest
from nova_vqos.tests.host import cap_watch
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_guarantee
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
SPECS = guests.server(36, vqos_guarantee='required')
#: Of each of two vCPUs on pCPUs of 100 CU and of 80, and of each of three.
HALF = units.CpuCap(9_000, 50_000)
HALF_OF_SLOWER = units.CpuCap(11_250, 50_000)
THIRD = units.CpuCap(8_000, 66_667)
TICK_MS = 1000

empty, whole = test_guarantee.empty, test_guarantee.whole

pytestmark = pytest.mark.measured


@pytest.fixture
def agent(whole, bus):
    with test_guarantee.started(whole, bus,
                                tick_interval_s=TICK_MS / 1000) as made:
        yield made
    agents.store_profile(whole, 1.0)


def reservations(guest):
    """:returns: of each vCPU, None: it has none"""
    return [deadline.reservation(guest.thread(vcpu))
            for vcpu in range(guest.domain().vcpusFlags())]


def wait_reserved(guest, wanted):
    process.wait_until(lambda: set(reservations(guest)) == {wanted}, LIMIT_S,
                       f'{wanted} for each vCPU of {guest.name}')


def wait_divided(guest, wanted):
    """The same, of which its threads of I/O may have some.

    As much as vCPUs leave: see :func:`nova_vqos.guarantee.vcpu_reservation`.
    """
    def is_divided():
        (found, *others) = set(reservations(guest))
        return (not others and found is not None
                and found.period_us == wanted.period_us
                and wanted.quota_us * 3 // 4 <= found.quota_us
                <= wanted.quota_us)

    process.wait_until(is_divided, LIMIT_S,
                       f'{wanted}, or a part, for each vCPU of {guest.name}')


class FirstReservation:
    """Waits for a vCPU that is plugged in, and then for its reservation.

    :ivar began_s: when the vCPU was seen; None: not yet
    :ivar wait_ms: from the one to the other; None: not yet
    """

    def __init__(self, guest, vcpu):
        self.began_s = self.wait_ms = None
        self._guest, self._vcpu = guest, vcpu
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exception):
        self._stop.set()
        self._thread.join()

    def _look(self):
        while self.wait_ms is None and not self._stop.wait(0.001):
            # Not there yet.
            with contextlib.suppress(OSError, IndexError, TypeError):
                tid = self._guest.thread(self._vcpu)
                self.began_s = self.began_s or time.monotonic()
                if deadline.reservation(tid):
                    self.wait_ms = (time.monotonic() - self.began_s) * 1000


def test_changes_of_a_guaranteed_server(agent, whole, busy):
    guest = busy.start(whole, SPECS)
    wait_reserved(guest, HALF)

    guest.domain().suspend()
    assert set(reservations(guest)) == {HALF}
    guest.domain().resume()
    assert set(reservations(guest)) == {HALF}

    # Less of a slower host is more time of it, and the reverse.
    for coefficient, wanted in (0.8, HALF_OF_SLOWER), (1.0, HALF):
        agents.store_profile(whole, coefficient)
        wait_reserved(guest, wanted)
        guest.wait_cap(wanted)

    # libvirtd is no part of it.
    tids = [guest.thread(vcpu) for vcpu in range(busy_guest.VCPUS)]
    whole.libvirtd.kill()
    assert {deadline.reservation(tid) for tid in tids} == {HALF}
    whole.start_libvirtd()
    agent.wait_connected(True)

    with (FirstReservation(guest, 2) as third,
          cap_watch.CapWatch(guest) as watch):
        whole.run(['virsh', 'setvcpus', guest.name, '3', '--live'])
        wait_divided(guest, THIRD)
        guest.wait_cap(THIRD)
        process.wait_until(lambda: third.wait_ms is not None, LIMIT_S,
                           'the reservation of the third vCPU to be seen')
        lost_ms = watch.lost_ms()
    assert third.wait_ms < TICK_MS + lost_ms
    assert watch.late_ms(THIRD, third.began_s) < TICK_MS, watch.caps()
    print(f'{third.wait_ms:.1f} ms until the third vCPU is guaranteed')
