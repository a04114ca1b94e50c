# SPDX-License-Identifier: Apache-2.0
"""The host of billing.py: of the lab, with guests, clients and the real agent.

Import it before the lab's own modules, see lab_host.py.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import sqlite3

import lab_host

from nova_vqos import policy
from nova_vqos.billing import meter
from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.profile import document
from nova_vqos_lab import ioguest
from nova_vqos_lab import iomeasure
from nova_vqos_lab import ionet
from nova_vqos_lab import process

LIMIT_S = 60
_PERIOD_US = 50_000
_LEDGER = 'var/lib/nova-vqos/ledger.sqlite'
_INTERFACE = usage.InterfaceKind('bridge', 'qemu')
_DISK = usage.DiskKind('file', buffered=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Mode:
    """A way to treat the CPU time of a server's I/O.

    :ivar name: for people
    :ivar billing: value of vqos:dd_billing; None: no agent, and of a server's
        tuning only the quota that Nova itself can set
    :ivar guarantee: value of vqos:guarantee; a server keeps what is reserved
        for it until it stops
    """

    name: str
    billing: str | None
    guarantee: str = 'off'


GUARANTEED = 'guaranteed'
MODES = {mode.name: mode for mode in (
    Mode('stock', None), Mode('off', 'off'), Mode('account', 'account'),
    Mode('charge', 'charge'), Mode(GUARANTEED, 'charge', 'required'))}


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A guest and what it is entitled to.

    :ivar units: in CU
    :ivar does_io: whether it does not only compute
    """

    guest: ioguest.IoGuest
    units: int
    does_io: bool


class Bench:
    """The host, its guests and its agent.

    :ivar options: of the command line
    :ivar host: of the lab
    :ivar net: the guests' bridge and the clients on it
    :ivar load_pcpu: that clients run on
    """

    def __init__(self, options: argparse.Namespace) -> None:
        pcpus = sorted(os.sched_getaffinity(0))
        self.load_pcpu = pcpus[-1]
        self.options = options
        # NOTE: time is reserved only for threads that may run on all pCPUs.
        self._bench = lab_host.BenchHost(set(
            pcpus if GUARANTEED in options.modes else pcpus[:1]))
        self.host = self._bench.host
        self.net = ionet.ClientNetwork(self.host, self._bench.network)
        self._io_costs = None

    def start(self) -> None:
        calibrated = self.options.profile and document.load(
            self.options.profile)
        self._io_costs = calibrated.io_costs if calibrated else None
        if self._io_costs is None:
            lab_host.say('no costs of I/O: the kernel\'s part of it counts '
                         'as nothing')
        self._bench.start(calibrated.io if calibrated else None)
        self.net.create()
        self._image = ioguest.build_image(lab_host.DIRECTORY)

    def remove(self) -> None:
        self._bench.remove()

    @contextlib.contextmanager
    def server(self, units: int, *, number: int = 0, readers: int = 0,
               spin: bool = False) -> Iterator[Server]:
        """A server that is up; it boots without a cap."""
        self._bench.stop_agent()
        guest = ioguest.IoGuest(
            self.host, self._image, number=number, readers=readers, spin=spin,
            specs={policy.UNITS_KEY: str(units)})
        try:
            guest.wait_ready()
            self.net.know(guest.address, guest.mac)
            yield Server(guest, units, does_io=not spin)
        finally:
            guest.destroy()

    def load(self, *arguments: str, pcpu: int | None = None
             ) -> iomeasure.Load:
        """A load from the clients, until it is left or for an hour."""
        return iomeasure.Load(self.net.load(
            *arguments, '--seconds', '3600',
            '--pcpu', str(self.load_pcpu if pcpu is None else pcpu)))

    def costs_ns(self, counted: Mapping[str, int]) -> float:
        """Of the kernel's part, by component and in all."""
        return sum(self.costs_by_part_ns(counted).values())

    def costs_by_part_ns(self, counted: Mapping[str, int]
                         ) -> dict[str, float]:
        if self._io_costs is None:
            return {}
        parts = {}
        interface = self._io_costs.interfaces.get(_INTERFACE)
        if interface is not None:
            parts = {
                'net_rx': float(interface.rx.total_ns(
                    counted['rx'], counted['rx_bytes'])),
                'net_tx': float(interface.tx.total_ns(
                    counted['tx'], counted['tx_bytes']))}
        disk = self._io_costs.disks.get(_DISK)
        if disk is not None:
            parts['disk'] = float(
                disk.read.total_ns(counted['read'], counted['read_bytes'])
                + disk.write.total_ns(counted['write'],
                                      counted['write_bytes']))
        return parts

    def ledger(self, server: Server) -> tuple[float, dict[str, float]]:
        """What the agent has billed.

        :returns: when it read what it billed, on the monotonic clock, and CPU
            seconds by component
        """
        columns = [f'{name}_cu_us' for name in meter.COMPONENTS]
        path = self.host.path(_LEDGER)
        with contextlib.closing(sqlite3.connect(
                f'file:{path}?mode=ro', uri=True, timeout=10)) as connection:
            # The columns are those of the ledger's own code.
            *amounts, baseline = connection.execute(
                f'SELECT {", ".join(columns)}, baseline FROM servers '  # nosec
                'WHERE server_uuid = ?', (server.guest.uuid,)).fetchone()
        return json.loads(baseline)['read_at_s'], {
            name: amount / 1e8 for name, amount
            in zip(meter.COMPONENTS, amounts, strict=True)}

    # Modes.

    def apply(self, mode: Mode, servers: Sequence[Server],
              agent: str = '') -> None:
        """Treat servers as a mode says.

        :param agent: lines of the section vqos_agent, where the agent starts
        """
        if mode.billing is None:
            self._bench.stop_agent()
            for server in servers:
                for name, value in (
                        ('global_quota', -1), ('vcpu_period', _PERIOD_US),
                        ('vcpu_quota', server.units * _PERIOD_US // 100),
                        ('cpu_shares', 1024)):
                    server.guest.set_cpu(**{name: value})
            return
        for server in servers:
            server.guest.set_specs(vqos_dd_billing=mode.billing,
                                   vqos_guarantee=mode.guarantee)
        if self._bench.agent is None:
            self._bench.start_agent(
                vqos=f'period_us = {_PERIOD_US}',
                agent=f'guarantees_speed = {mode.guarantee != "off"}\n'
                      + agent)
        for server in servers:
            process.wait_until(
                lambda guest=server.guest: guest.limits()[1][0] > 0,
                LIMIT_S, f'a cap for {server.guest.name}')
            if mode.guarantee != 'off':
                thread = self._bench.vcpu_thread(server.guest.name)
                process.wait_until(
                    lambda thread=thread: deadline.reservation(thread),
                    LIMIT_S, f'a reservation for {server.guest.name}')
