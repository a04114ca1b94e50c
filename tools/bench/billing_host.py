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


"""The host of billing.py: of the lab, with guests, clients and the real agent.

Import it first: it chooses where the lab's other modules keep things.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sqlite3
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_LAB_DIRECTORY = tempfile.mkdtemp(prefix='vqos-billing-')
os.environ['NOVA_VQOS_LAB_DIR'] = _LAB_DIRECTORY
os.environ['NOVA_VQOS_LAB_PREFIX'] = 'vqosbill'
sys.path.insert(0, str(_ROOT / 'devstack'))
sys.path.insert(0, str(_ROOT))

from nova_vqos import fingerprint  # noqa: E402
from nova_vqos import policy  # noqa: E402
from nova_vqos import profile  # noqa: E402
from nova_vqos.billing import meter  # noqa: E402
from nova_vqos.billing import usage  # noqa: E402
from nova_vqos.tests import make_profiles  # noqa: E402
from nova_vqos_lab import host as hosts  # noqa: E402
from nova_vqos_lab import ioguest  # noqa: E402
from nova_vqos_lab import iomeasure  # noqa: E402
from nova_vqos_lab import ionet  # noqa: E402
from nova_vqos_lab import netns  # noqa: E402
from nova_vqos_lab import process  # noqa: E402

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
    """

    name: str
    billing: str | None


MODES = {mode.name: mode for mode in (
    Mode('stock', None), Mode('off', 'off'), Mode('account', 'account'),
    Mode('charge', 'charge'))}


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
        self._network = netns.Network()
        self.host = hosts.Host('bench', {pcpus[0]}, address='198.18.0.21')
        self.net = ionet.ClientNetwork(self.host, self._network)
        self._agent: process.Process | None = None
        self._io_costs = None

    def start(self) -> None:
        calibrated = self.options.profile and profile.load(
            self.options.profile)
        self._io_costs = calibrated.io_costs if calibrated else None
        if self._io_costs is None:
            say('no costs of I/O: the kernel\'s part of it counts as nothing')
        self._network.create()
        self.host.start(peers={})
        self.net.create()
        self._image = ioguest.build_image(_LAB_DIRECTORY)
        profile.store(make_profiles.make_profile(
            self.host.name, make_profiles.make_class(self.host.pcpus, 1.0),
            fingerprint=fingerprint.of_host(),
            **({'io': calibrated.io} if calibrated else {})),
            self.host.path('etc/nova-vqos/profile.yaml'))

    def remove(self) -> None:
        self.host.remove()
        self._network.remove()
        shutil.rmtree(_LAB_DIRECTORY, ignore_errors=True)

    @contextlib.contextmanager
    def server(self, units: int, *, number: int = 0, readers: int = 0,
               spin: bool = False) -> Iterator[Server]:
        """A server that is up; it boots without a cap."""
        self.stop_agent()
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
                'net_rx': interface.rx.total_ns(counted['rx'],
                                                counted['rx_bytes']),
                'net_tx': interface.tx.total_ns(counted['tx'],
                                                counted['tx_bytes'])}
        disk = self._io_costs.disks.get(_DISK)
        if disk is not None:
            parts['disk'] = (
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
            *amounts, baseline = connection.execute(
                f'SELECT {", ".join(columns)}, baseline FROM servers '
                'WHERE server_uuid = ?', (server.guest.uuid,)).fetchone()
        return json.loads(baseline)['read_at_s'], {
            name: amount / 1e8 for name, amount
            in zip(meter.COMPONENTS, amounts, strict=True)}

    # Modes.

    def apply(self, mode: Mode, servers: Sequence[Server]) -> None:
        """Treat servers as a mode says."""
        if mode.billing is None:
            self.stop_agent()
            for server in servers:
                for name, value in (
                        ('global_quota', -1), ('vcpu_period', _PERIOD_US),
                        ('vcpu_quota', server.units * _PERIOD_US // 100),
                        ('cpu_shares', 1024)):
                    server.guest.set_cpu(**{name: value})
            return
        for server in servers:
            server.guest.set_specs(vqos_dd_billing=mode.billing)
        if self._agent is None:
            self.start_agent()
        for server in servers:
            process.wait_until(
                lambda guest=server.guest: guest.limits()[1][0] > 0,
                LIMIT_S, f'a cap for {server.guest.name}')

    def start_agent(self) -> None:
        pathlib.Path(self.host.path('etc/nova-vqos/nova-vqos.conf')
                     ).write_text(
            '[DEFAULT]\nhost = bench\n'
            # The port discard, where nobody is: the bus is down.
            'transport_url = rabbit://nobody:nothing@127.0.0.1:9/\n'
            f'[vqos]\nperiod_us = {_PERIOD_US}\n')
        self._agent = self.host.popen(
            [sys.executable, '-m', 'nova_vqos.cmd.agent', '--config-file',
             '/etc/nova-vqos/nova-vqos.conf'],
            env={'PYTHONPATH': str(_ROOT), 'MALLOC_ARENA_MAX': '2'},
            log='agent')

    def stop_agent(self) -> None:
        if self._agent is not None:
            if not self._agent.alive():
                log = pathlib.Path(self._agent.log).read_text()
                raise process.LabError(f'the agent died: {log[-2000:]}')
            self._agent.stop()
        self._agent = None


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(text, file=sys.stderr, flush=True)
