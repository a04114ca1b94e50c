# SPDX-License-Identifier: Apache-2.0
"""The sum of guests' bills for packets, against the CPU time that these took.

As test_tap_servers.py, with real QEMUs on a bridge, whose guests' own work is
most of it, and a network namespace as the outside.
"""

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import time

import pytest

from nova_vqos.agent.billing import biller
from nova_vqos.billing import ledger
from nova_vqos.billing import meter
from nova_vqos.calibration import run
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import measure
from nova_vqos.hypervisor.linux import bridges
from nova_vqos.profile import fingerprint
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.host import test_tap_servers
from nova_vqos.tests.host import test_usage
from nova_vqos_lab import iomeasure
from nova_vqos_lab import process

TOLERANCE = test_tap_servers.TOLERANCE
ROUNDS = 3
WINDOW_S = 3
CALIBRATED_S = 20
LIMIT_S = 60
# Of a pCPU, for each vCPU that sends.
CAP = (15_000, 50_000)
# Of the outside: packets at once, and a second.
BURSTS, SINGLY = (64, 3000), (1, 1000)
BYTES = 1000
OUTSIDE, NOWHERE = '198.18.1.1', '198.18.2.2'

pytestmark = [pytest.mark.timeout(600), pytest.mark.measured]

clients, image = test_usage.clients, test_usage.image
start, reader = test_usage.start, test_usage.reader


@dataclasses.dataclass(frozen=True, slots=True)
class Took:
    """CPU time in a window, in ns.

    :ivar billed: by part, to all servers
    :ivar servers: of their QEMUs
    :ivar outside: of the sender there
    :ivar kernel: of the kernel's own threads
    :ivar sent: packets of that sender
    """

    billed: dict[str, float]
    servers: int
    outside: int
    kernel: int
    sent: float


class Bills:
    """The agent's biller, for some guests.

    :ivar when_read: called whenever it has read what they used
    """

    def __init__(self, driver, directory, guests, costs):
        self._biller = biller.Biller(
            driver, ledger.Ledger(str(directory / 'ledger.sqlite')),
            billing_host.Outbox(), biller.Options())
        self._costs = costs
        self._servers = [billable(driver, guest) for guest in guests]
        self._statistics = driver._statistics
        self._total_ns = {}
        self.when_read = lambda: None
        usages = driver.usages

        def read(*arguments):
            found = usages(*arguments)
            self.when_read()
            return found
        driver.usages = read

    def total_ns(self):
        """Bill all of them.

        :returns: of all bills so far, by part
        """
        # Those that do little, too.
        self._statistics._schedule.retain(())
        uuids = {server.uuid for server in self._servers}
        for uuid, billed in self._biller.bill_all(
                self._servers, self._costs, uuids).items():
            self._total_ns[uuid] = {
                part: used_cu_s * 1e7 for part, used_cu_s
                in billed.report.used_here_cu_s.items()}
        return {part: sum(one[part] for one in self._total_ns.values())
                for part in meter.COMPONENTS}

    def close(self):
        self._biller.close()


def billable(driver, guest):
    described = driver.describe(guest.uuid)
    return biller.Billable(
        uuid=guest.uuid, name=guest.name, project_id='p', billing='account',
        origin='booted', began_s=None, coefficient=1.0, host_coefficient=1.0,
        entitlement_cu=None, limit_share=None, devices=meter.Devices(
            described.interfaces, described.disks))


class Bench:
    """Guests, their bills, and the clocks of all."""

    def __init__(self, clients, guests, bills, kernel):
        self._clients = clients
        self.receiver, self.near, self.far = self._guests = guests
        self._bills = bills
        self._kernel = kernel

    @contextlib.contextmanager
    def running(self, guest):
        guest.resume()
        yield None
        guest.pause()

    @contextlib.contextmanager
    def sending(self, address, burst, rate):
        popen = self._clients.load(
            'udp', address, '--burst', str(burst), '--rate', str(rate),
            '--size', str(BYTES), '--seconds', str(LIMIT_S), '--pcpu',
            str(max(os.sched_getaffinity(0))))
        with iomeasure.Load(popen) as load:
            process.wait_until(load.begun, LIMIT_S, 'packets')
            yield popen.pid, load

    def window(self, traffic):
        """What is used while there is some traffic."""
        with traffic as sender:
            # The first moments, and the bill for what was before, are no
            # part of it.
            time.sleep(1)
            before_s, before = self._moment(sender)
            time.sleep(WINDOW_S)
            after_s, after = self._moment(sender)
            sent = (sender[1].rate(before_s, after_s) * (after_s - before_s)
                    if sender else 0.0)
        return Took(
            {part: after.billed[part] - before.billed[part]
             for part in before.billed}, after.servers - before.servers,
            after.outside - before.outside, after.kernel - before.kernel,
            sent)

    def _moment(self, sender):
        clocks = []
        self._bills.when_read = lambda: clocks.extend((
            sum(accounts.cpu_time_ns(guest.pid) for guest in self._guests),
            accounts.cpu_time_ns(sender[0]) if sender else 0,
            self._kernel.read().charged_ns))
        now_s = time.monotonic()
        billed = self._bills.total_ns()
        return now_s, Took(billed, *clocks, 0)


@pytest.fixture
def bench(lab, clients, start, reader, tmp_path):
    apart = fingerprint.of_host().get('irq_time_accounting') == 'y'
    pcpus = sorted(os.sched_getaffinity(0))
    costs = measure.calibrate(
        measure.Setting(pcpus=(pcpus[-1], pcpus[0]), modes=('bridge',),
                        disk_directory=None, interrupts_apart=apart),
        run.Effort(max_rounds=150, max_s=CALIBRATED_S)).measured.costs
    # What goes there ends where it arrives.
    for arguments in (
            ('route', 'replace', f'{NOWHERE}/32', 'dev', 'eth1'),
            ('neighbour', 'replace', NOWHERE, 'lladdr', '02:00:00:00:00:0a',
             'dev', 'eth1', 'nud', 'permanent')):
        subprocess.run(['ip', '-netns', clients.namespace, *arguments],
                       check=True)
    receiver = start()
    guests = (receiver, start(cap=CAP, send=receiver.address),
              start(cap=CAP, send=OUTSIDE))
    for guest in guests:
        reader.add(guest)
        guest.pause()
    clients.know(receiver.address, receiver.mac)
    reader.driver._bridges = bridges.BridgeReader(
        str(network_of(receiver, tmp_path)))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(subprocess.Popen(clients.enter(
            [sys.executable, '-c', 'import socket, signal\n'
             'made = socket.socket(type=socket.SOCK_DGRAM)\n'
             'made.bind(("", 9))\nsignal.pause()'])))
        stack.callback(listener.kill)
        bills = stack.enter_context(contextlib.closing(Bills(
            reader.driver, tmp_path, guests, costs)))
        kernel = stack.enter_context(contextlib.closing(accounts.Accounts(
            pcpus, accounts.kernel_threads(name=r'ksoftirqd/\d+'),
            apart=apart)))
        yield Bench(clients, guests, bills, kernel)


def network_of(guest, directory):
    """:returns: a directory with the /proc/net and the /sys of its host"""
    of_host, root = pathlib.Path('/proc', str(guest.pid)), directory / 'root'
    (root / 'proc').mkdir(parents=True)
    (root / 'proc/net').symlink_to(of_host / 'net')
    (root / 'sys').symlink_to(of_host / 'root/sys')
    return root


def test_bills_of_guests(bench):
    found = {}
    for _ in range(ROUNDS):
        with bench.running(bench.receiver):
            base = {kind: bench.window(bench.sending(NOWHERE, *kind))
                    for kind in (BURSTS, SINGLY)}
            took = {f'from outside, {name}': (bench.window(bench.sending(
                bench.receiver.address, *kind)), base[kind])
                for name, kind in (('bursts', BURSTS), ('singly', SINGLY))}
            took['local'] = bench.window(bench.running(bench.near)), None
        took['to outside'] = bench.window(bench.running(bench.far)), None
        for way, (one, base) in took.items():
            outside = (one.outside - base.outside * one.sent / base.sent
                       if base else 0)
            spent = one.servers + outside + one.kernel
            billed = sum(one.billed.values())
            found.setdefault(way, []).append(billed / spent)
            vcpu = one.billed['vcpu']
            found.setdefault(f'{way}, without vCPUs', []).append(
                (billed - vcpu) / (spent - vcpu))
    billed = {way: test_tap_servers.median(way, ratios)
              for way, ratios in found.items()}
    # Waking QEMU is not billed: for each packet, or for 64 of them.
    for way, least in (('singly', 0.7), ('bursts', 0.8)):
        assert least < billed[f'from outside, {way}'] < 1 + TOLERANCE
    for way in ('local', 'to outside'):
        assert billed[way] == pytest.approx(1, abs=TOLERANCE)
