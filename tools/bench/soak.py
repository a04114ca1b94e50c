#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a host loses CPU time that it could reserve.

A real agent that guarantees speed, and real QEMU guests, some of which spin
and some of which sleep: they are started, stopped, paused, resumed and made
larger or smaller by chance, and QEMU and the agent are killed. Every now and
then all guests end, and what the kernel would still reserve is compared with
what it was at first.
"""

from fractions import Fraction
import os
import pathlib
import random
import signal
import time

import lab_host
import libvirt
import rom_guests

from nova_vqos import policy
from nova_vqos.hypervisor.linux import deadline
from nova_vqos_lab import process

_MOST_GUESTS = 5
_UNITS = range(5, 26)
_LONGEST_PAUSE_S = 0.3
_LIMIT_S = 60
# The kernel forgets what had a reservation some periods after its end.
_FORGET_S = 1.0
# A measurement ends at 1/1024 of a pCPU.
_RESOLUTION = Fraction(1, 1024)


class Soak:
    """What is done to a host.

    :ivar done: how often, by action
    """

    def __init__(self, bench: lab_host.BenchHost, chance: random.Random
                 ) -> None:
        self.done: dict[str, int] = {}
        self._bench = bench
        self._chance = chance
        self._connection = libvirt.open(bench.host.libvirt_uri)
        self._guests: list[rom_guests.RomGuest] = []
        self._started = 0
        self._actions = (self.start, self.start, self.stop, self.pause,
                         self.resume, self.resize, self.resize, self.kill,
                         self.kill_agent)

    def act(self) -> None:
        """Do one of all that can be done, and wait for a while or not."""
        while not (action := self._chance.choice(self._actions))():
            pass
        self.done[action.__name__] = self.done.get(action.__name__, 0) + 1
        time.sleep(self._chance.choice((0, 0, 1))
                   * self._chance.uniform(0, _LONGEST_PAUSE_S))

    def start(self) -> bool:
        if len(self._guests) >= _MOST_GUESTS:
            return False
        units = self._chance.choice(_UNITS)
        kind = rom_guests.Kind(busy_units=units, idle_units=units,
                               has_devices=False, spins=True)
        self._started += 1
        self._guests.append(rom_guests.RomGuest(
            self._connection, self._started, kind,
            is_busy=self._chance.random() < 0.5,
            specs={policy.GUARANTEE_KEY: 'required'}))
        return True

    def stop(self) -> bool:
        guest = self._take()
        if guest:
            guest.domain.destroy()
        return guest is not None

    def kill(self) -> bool:
        """QEMU, at once."""
        guest = self._take()
        if guest:
            thread = self._bench.vcpu_thread(guest.domain.name())
            status = pathlib.Path(f'/proc/{thread}/status').read_text()
            (pid,) = (line.split()[1] for line in status.splitlines()
                      if line.startswith('Tgid:'))
            process.Process(int(pid)).signal(signal.SIGKILL)
        return guest is not None

    def pause(self) -> bool:
        return self._change(lambda guest: guest.domain.suspend(),
                            libvirt.VIR_DOMAIN_RUNNING)

    def resume(self) -> bool:
        return self._change(lambda guest: guest.domain.resume(),
                            libvirt.VIR_DOMAIN_PAUSED)

    def resize(self) -> bool:
        units = self._chance.choice(_UNITS)
        return self._change(lambda guest: guest.set_flavor(
            {policy.UNITS_KEY: str(units)}), libvirt.VIR_DOMAIN_RUNNING)

    def kill_agent(self) -> bool:
        # It is dear: each time the host is measured again.
        if self._chance.random() < 0.8:
            return False
        agent = self._bench.agent
        assert agent is not None
        agent.signal(signal.SIGKILL)
        agent.wait(_LIMIT_S)
        self._bench.start_guaranteeing_agent()
        return True

    def end_all(self) -> None:
        """End all guests, and wait until the kernel forgot them."""
        for guest in self._guests:
            guest.domain.destroy()
        self._guests.clear()
        process.wait_until(lambda: not self._connection.listAllDomains(),
                           _LIMIT_S, 'the end of all guests')
        time.sleep(_FORGET_S)

    def _take(self) -> rom_guests.RomGuest | None:
        if not self._guests:
            return None
        return self._guests.pop(self._chance.randrange(len(self._guests)))

    def _change(self, change, state: int) -> bool:
        """Change a guest that is in a state, if there is one."""
        found = [one for one in self._guests
                 if one.domain.state()[0] == state]
        if found:
            change(self._chance.choice(found))
        return bool(found)


def main():
    parser = lab_host.argparse.ArgumentParser(description=__doc__.split(
        '\n', 1)[0])
    parser.add_argument('--actions', type=int, default=1000,
                        help='default: %(default)s')
    parser.add_argument('--every', type=int, default=100,
                        help='actions between two measurements '
                        '(default: %(default)s)')
    parser.add_argument('--seed', type=int, default=1,
                        help='of what is done (default: %(default)s)')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    lab_host.prepare()
    found = []
    with lab_host.started() as bench:
        rom_guests.install_roms(bench)
        bench.start_guaranteeing_agent()
        pcpus = len(bench.host.pcpus)
        print(f'{pcpus} pCPUs, Linux {os.uname().release}')
        soak = Soak(bench, random.Random(options.seed))
        soak.end_all()
        found.append(deadline.free_bandwidth(pcpus))
        print(f'{"actions":>7} {"pCPUs to reserve":>16}')
        print(f'{0:7} {float(found[0]):16.4f}', flush=True)
        for number in range(1, options.actions + 1):
            soak.act()
            if number % options.every == 0 or number == options.actions:
                soak.end_all()
                found.append(deadline.free_bandwidth(pcpus))
                print(f'{number:7} {float(found[-1]):16.4f}', flush=True)
        print(', '.join(f'{name} {count}'
                        for name, count in sorted(soak.done.items())))
        bench.stop_agent()
    lost = found[0] - min(found)
    lab_host.save({'kernel': os.uname().release, 'actions': soak.done,
                   'pcpus': [float(one) for one in found]}, options.json)
    print(f'{float(lost):.4f} pCPUs are lost at most')
    raise SystemExit(lost > 2 * _RESOLUTION)


if __name__ == '__main__':
    main()
