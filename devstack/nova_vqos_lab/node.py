# SPDX-License-Identifier: Apache-2.0
"""A compute host of the cloud: its nova-compute and its agent."""

from collections.abc import Iterable, Iterator
import contextlib
import os

import libvirt

from nova_vqos import cpuset
from nova_vqos_lab import cgroups
from nova_vqos_lab import config
from nova_vqos_lab import host as hosts
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import requirements
from nova_vqos_lab import services

#: Programs of Nova and nova_vqos on each host.
COMPUTE, AGENT = 'nova-compute', 'nova-vqos-agent'
_AGENT_LIMIT_S = 60


class Node:
    """What runs on a host of the cloud, and what it sells.

    :ivar host: it
    :ivar correction_reserve_cu: see the option; in force from the next start
        of its programs on
    """

    def __init__(self, host: hosts.Host, of_hosts: profiles.Profiles,
                 sold_share: float) -> None:
        """:param of_hosts: the profiles of all hosts
        :param sold_share: of its pCPUs, that are sold as a rule
        """
        self.host = host
        self.correction_reserve_cu = 0
        self._profiles = of_hosts
        self._sold_share = sold_share

    def running(self, *programs: str) -> Iterator[tuple[str, int | None]]:
        """:returns: libvirtd and these programs, with the pid if one runs"""
        found = [('libvirtd', self.host.libvirtd)]
        found += [(program, self.process_of(program)) for program in programs]
        for program, running in found:
            yield f'{program} on {self.host.name}', (
                running.pid if running and running.alive() else None)

    def process_of(self, program: str) -> process.Process | None:
        """:returns: the process of a program that was started here."""
        return process.Process.load(self._pid_file(program))

    def runs(self, program: str) -> bool:
        """:returns: whether a program was started here, and is alive"""
        running = self.process_of(program)
        return running is not None and running.alive()

    def stop(self, program: str) -> None:
        """End a program."""
        running = self.process_of(program)
        if running:
            running.stop()

    # nova-compute.

    def write_compute(self, more: config.Settings | None = None) -> None:
        """Write nova.conf.

        :param more: laid over the stock settings
        """
        settings = config.nova_compute(
            self.host.name, self.host.address,
            cpuset.format_pcpus(self.host.pcpus))
        config.write_ini(self._compute_conf,
                         config.merge(settings, more or {}))

    def start_compute(self) -> None:
        """Start nova-compute."""
        os.makedirs(self.host.path('nova/instances'), exist_ok=True)
        self._start(COMPUTE, ['--config-file', self._compute_conf])

    def restart_compute(self) -> None:
        """End nova-compute, and start it anew."""
        self.stop(COMPUTE)
        self.start_compute()

    def sell_units(self, allocation_ratio: float | None = None,
                   servers_without_units: str = 'refuse') -> None:
        """Let the host have CPU units: its nova-compute starts anew.

        :param allocation_ratio: how many times over it sells them; None: as
            often as the machine has them
        :param servers_without_units: 'refuse': it reserves units for them
        """
        self.write_compute(config.merge(
            config.compute_with_units(
                allocation_ratio or self._sold_share,
                self._profiles.widest_interval(self.host.name),
                servers_without_units),
            self._reserve()))
        self.restart_compute()

    # nova-vqos-agent.

    def start_agent(self, more: config.Settings | None = None
                    ) -> process.Process:
        """Start nova-vqos-agent, and wait for its heartbeat.

        :param more: laid over its usual settings
        """
        host = self.host
        path = host.path('etc/nova-vqos/nova-vqos.conf')
        config.write_ini(path, config.merge(config.agent(
            host.name, host.address,
            self._profiles.widest_interval(host.name)),
            self._reserve(), {'vqos': {
                'allocation_ratio': str(self._sold_share)}}, more or {}))
        # The password of the bus is in it.
        os.chmod(path, 0o640)
        agent = self._start(AGENT, [
            '--config-file', '/etc/nova-vqos/nova-vqos.conf'])
        process.wait_until(lambda: os.path.exists(self._agent_state),
                           _AGENT_LIMIT_S, f'the agent of host {host.name}',
                           log=agent.log, alive=agent.alive)
        return agent

    def start_agent_again(self) -> None:
        """Start an agent that has died; one that runs stays."""
        if self.runs(AGENT):
            return
        # NOTE: what the last one wrote stays until this one writes. Without it
        # a nova-compute that runs would report, for a minute, that there never
        # was an agent, and the scheduler would refuse the host.
        before_s = self._agent_wrote_at_s()
        agent = self.start_agent()
        process.wait_until(
            lambda: self._agent_wrote_at_s() > before_s, _AGENT_LIMIT_S,
            f'a word of the agent of host {self.host.name}', log=agent.log,
            alive=agent.alive)

    def restart(self, for_agent: config.Settings | None = None,
                allocation_ratio: float | None = None) -> None:
        """Have nova_vqos look at the host's pCPUs and settings again.

        :param for_agent: laid over the agent's usual settings
        :param allocation_ratio: see sell_units()
        """
        cgroups.divide(self.host.hierarchy, self.host.cgroup, self.host.pcpus)
        self.stop(AGENT)
        # nova-compute is not to read what the last agent wrote.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._agent_state)
        self.start_agent(for_agent)
        self.sell_units(allocation_ratio)

    def destroy_guests(self) -> None:
        """End all guests behind Nova's back."""
        with contextlib.closing(libvirt.open(
                self.host.libvirt_uri)) as connection:
            for domain in connection.listAllDomains(
                    libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                # It may end by itself.
                with contextlib.suppress(libvirt.libvirtError):
                    domain.destroy()

    @property
    def _compute_conf(self) -> str:
        return f'{paths.etc(f"nova-compute-{self.host.name}")}/nova.conf'

    @property
    def _agent_state(self) -> str:
        return self.host.path('run/nova-vqos/agent.json')

    def _agent_wrote_at_s(self) -> float:
        try:
            return os.stat(self._agent_state).st_mtime
        except FileNotFoundError:
            return 0.0

    def _reserve(self) -> config.Settings:
        return {'vqos': {
            'correction_reserve_cu': str(self.correction_reserve_cu)}}

    def _start(self, program: str,
               arguments: Iterable[str]) -> process.Process:
        running = self.process_of(program)
        if running and running.alive():
            return running
        running = self.host.popen(
            [f'{services.BIN}/{program}', *arguments],
            # Of the virtual environment: privsep-helper, for one.
            env={'PATH': f'{services.BIN}:{os.environ["PATH"]}:'
                         f'{requirements.SBIN}'},
            log=f'{program}-{self.host.name}')
        running.save(self._pid_file(program))
        return running

    def _pid_file(self, program: str) -> str:
        return os.path.join(paths.RUN, f'{program}-{self.host.name}.pid')
