# SPDX-License-Identifier: Apache-2.0
"""The two-host cloud: make it, deploy nova_vqos on it, remove it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import contextlib
import fcntl
import math
import os
import shutil
import time
import types

import libvirt

from nova_vqos import cpuset
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import config
from nova_vqos_lab import daemons
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import openstack
from nova_vqos_lab import pace
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import requirements
from nova_vqos_lab import services
from nova_vqos_lab import ssh

#: Programs of nova_vqos and Nova on each host.
COMPUTE, AGENT = 'nova-compute', 'nova-vqos-agent'
_PCPUS_EACH = 3
_HOST_LIMIT_S = 120
# The rest is for what a cloud and its hosts do beside servers: all of the lab
# is on these pCPUs.
_GUARANTEED_SHARE = 0.75
# Of the lab's directory: what `down` removes there, and nothing else.
_CONTENT = ('data', 'etc', 'hosts', 'log', 'nova', 'run', 'openrc', 'tempest')


class Lab:
    """The lab on this machine, whether it runs or not.

    Each host has three pCPUs, or all that the machine has, so that a server
    may have several vCPUs. Where the hosts have some in common, each sells
    half of what it has.

    :ivar hosts: its two hosts, by name
    :ivar profiles: of the hosts
    :ivar correction_reserve_cu: of each host, see the option; in force from
        the next start of its services on
    """

    def __init__(self, pcpus_each: int = _PCPUS_EACH) -> None:
        """:param pcpus_each: pCPUs of each host"""
        self.network = netns.Network()
        machine = sorted(os.sched_getaffinity(0))
        given = {'fast': machine[:pcpus_each], 'slow': machine[-pcpus_each:]}
        self.hosts = {name: hosts.Host(name, pcpus,
                                       slow=name == profiles.REFERENCE)
                      for name, pcpus in given.items()}
        self.profiles = profiles.Profiles(
            self.hosts, {'fast': machine[0], 'slow': machine[-1]})
        self._sold_share = (
            1.0 if self.hosts['fast'].pcpus.isdisjoint(
                self.hosts['slow'].pcpus) else 1 / len(self.hosts))
        self.correction_reserve_cu = 0
        self._up_mark = os.path.join(paths.RUN, 'up')
        self._deployed_mark = os.path.join(paths.RUN, 'deployed')

    @property
    def is_up(self) -> bool:
        """Whether all of it was started and is not removed yet."""
        return os.path.exists(self._up_mark)

    @property
    def is_deployed(self) -> bool:
        """Whether nova_vqos was deployed on it."""
        return os.path.exists(self._deployed_mark)

    def up(self) -> None:
        """Make the cloud, with stock Nova; a half-made one is removed first.

        Of one that is up, what does not run any more is started again.

        :raises process.LabError: when a step fails
        """
        if self.is_up:
            self._start_dead()
            return
        lacking = requirements.missing()
        if lacking:
            raise process.LabError('; '.join(lacking))
        # What is asked for is looked at before the minutes that it takes.
        config.period_us()
        self.down()
        paths.make_root()
        began = time.monotonic()
        with process.stage('network, hosts, database and message bus'):
            self.network.create()
            ssh.make_key()
            openstack.together(
                *(lambda host=host: self._start_host(host)
                  for host in self.hosts.values()),
                self._step_inside(services.start_mariadb),
                self._step_inside(services.start_rabbitmq),
                self._make_guest)
            config.write_controller()
        self._start_services()
        _touch(self._up_mark)
        process.say(f'the lab is up after {time.monotonic() - began:.0f} s')

    def deploy(self, servers_without_units: str = 'refuse') -> None:
        """Put nova_vqos on the cloud, as its operator would.

        :param servers_without_units: what scheduler and hosts do with those
        :raises process.LabError: when a step fails
        """
        if self.is_deployed:
            process.say('nova_vqos is deployed already')
            return
        config.write_ini(paths.MANAGE_CONF, config.manage())
        with process.stage(
                "libvirt's hook, the agent and the driver on each host, the "
                'filter in nova-scheduler'):
            openstack.together(
                lambda: self._restart_scheduler(servers_without_units),
                *(lambda name=name: self._deploy_on(
                    name, servers_without_units) for name in self.hosts))
            self.wait_for_units()
        _touch(self._deployed_mark)

    def _deploy_on(self, name: str, servers_without_units: str) -> None:
        host = self.hosts[name]
        config.write_ini(host.path('etc/nova-vqos/hook.conf'), config.hook())
        host.run([f'{services.BIN}/nova-vqos-libvirt-hook', '--install',
                  '--trust', paths.OWNER])
        # libvirt looks for hooks when it starts.
        host.stop_libvirtd()
        host.start_libvirtd()
        self.start_agent(name)
        self.sell_units(name, servers_without_units=servers_without_units)

    def down(self) -> None:
        """Remove every trace of the lab, also of a half-made one.

        :raises process.LabError: when something cannot be removed
        """
        if not os.path.isdir(paths.ROOT) and not self.network.exists(
                self.network.controller):
            return
        with process.stage('removing what there is of a lab'):
            openstack.together(
                *(host.remove for host in self.hosts.values()),
                # Nothing that they have is to last.
                *(daemon.kill for daemon in services.ALL))
            # With what was started and not noted any more.
            self.network.remove()
            cgroups.remove(cgroups.detect(), pace.GROUP)
            for name in _CONTENT:
                path = os.path.join(paths.ROOT, name)
                if os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(paths.ROOT)

    # Parts of it.

    def running(self) -> Iterator[tuple[str, int | None]]:
        """:returns: what the cloud consists of, with its pid if it runs"""
        for daemon in services.ALL:
            yield daemon.name, daemon.pid
        yield from self.running_on_hosts()

    def running_on_hosts(self) -> Iterator[tuple[str, int | None]]:
        """The same of the programs on hosts."""
        for name, host in self.hosts.items():
            programs = [('libvirtd', host.libvirtd)]
            programs += [(program, self.process_on(name, program))
                         for program in self._programs()]
            for program, found in programs:
                yield f'{program} on {name}', (
                    found.pid if found and found.alive() else None)

    def _programs(self) -> tuple[str, ...]:
        return (COMPUTE, AGENT) if self.is_deployed else (COMPUTE,)

    def _start_dead(self) -> None:
        dead = [name for name, pid in self.running() if pid is None]
        dead += [f'host {name}' for name, host in self.hosts.items()
                 if not host.alive()]
        if not dead:
            process.say('the lab is up already')
            return
        with process.stage(f'starting what does not run: {", ".join(dead)}'):
            # The machine may have been booted since.
            self.network.create()
            for host in self.hosts.values():
                self._start_host(host)
            with self._controller_network():
                services.start_mariadb()
                services.start_rabbitmq()
                openstack.together(*map(_api, services.APIS))
                services.start_conductor()
                services.start_scheduler()
            for name in self.hosts:
                if self.is_deployed:
                    self._start_agent_again(name)
                self.start_compute(name)
            self._wait_for_hosts()
            if self.is_deployed:
                self.wait_for_units()

    def _start_agent_again(self, name: str) -> None:
        if self._runs_on(name, AGENT):
            return
        # NOTE: what the last one wrote stays until this one writes. Without it
        # a nova-compute that runs would report, for a minute, that there never
        # was an agent, and the scheduler would refuse the host.
        before_s = self._agent_wrote_at_s(name)
        agent = self.start_agent(name)
        process.wait_until(
            lambda: self._agent_wrote_at_s(name) > before_s, 60,
            f'a word of the agent of host {name}', log=agent.log,
            alive=agent.alive)

    def _agent_wrote_at_s(self, name: str) -> float:
        try:
            return os.stat(self._agent_state(name)).st_mtime
        except FileNotFoundError:
            return 0.0

    def _start_services(self) -> None:
        with self._controller_network():
            with process.stage(
                    'schemas and APIs of Keystone, Placement, Glance and '
                    'Nova'):
                openstack.together(
                    openstack.in_turn(
                        openstack.make_keystone, _api('keystone'),
                        openstack.make_accounts),
                    openstack.in_turn(
                        openstack.make_placement, _api('placement')),
                    openstack.in_turn(openstack.make_glance, _api('glance')),
                    openstack.in_turn(openstack.make_nova, _api('nova')),
                    _api('neutron'))
            with process.stage('nova-conductor and nova-scheduler'):
                # nova-compute asks for the conductor, and then after 10 s.
                openstack.together(services.start_conductor,
                                   services.start_scheduler)
        with process.stage(
                "nova-compute on each host, with Nova's own driver"):
            for name in self.hosts:
                self.write_compute(name)
                self.start_compute(name)
            self._wait_for_hosts()

    def write_compute(self, name: str,
                      more: config.Settings | None = None) -> None:
        """Write nova.conf of a host.

        :param more: laid over the stock settings
        """
        host = self.hosts[name]
        settings = config.nova_compute(
            name, host.address, cpuset.format_pcpus(host.pcpus))
        config.write_ini(f'{paths.etc(f"nova-compute-{name}")}/nova.conf',
                         config.merge(settings, more or {}))

    def sell_units(self, name: str, allocation_ratio: float | None = None,
                   servers_without_units: str = 'refuse') -> None:
        """Let a host have CPU units: its nova-compute starts anew.

        :param allocation_ratio: how many times over it sells them; None: as
            often as the machine has them
        :param servers_without_units: 'refuse': it reserves units for them
        """
        self.write_compute(
            name, config.merge(config.compute_with_units(
                allocation_ratio or self._sold_share,
                self.profiles.widest_interval(name), servers_without_units),
                self._reserve()))
        self.restart_compute(name)

    def start_compute(self, name: str) -> None:
        """Start nova-compute on a host."""
        os.makedirs(self.hosts[name].path('nova/instances'), exist_ok=True)
        self._start_on(name, COMPUTE, [
            '--config-file', f'{paths.etc(f"nova-compute-{name}")}/nova.conf'])

    def restart_compute(self, name: str) -> None:
        """End nova-compute on a host and start it anew."""
        self.stop_on(name, COMPUTE)
        self.start_compute(name)

    def start_agent(self, name: str,
                    more: config.Settings | None = None) -> process.Process:
        """Start nova-vqos-agent on a host, and wait for its heartbeat.

        :param more: laid over its usual settings
        """
        host = self.hosts[name]
        path = host.path('etc/nova-vqos/nova-vqos.conf')
        config.write_ini(path, config.merge(config.agent(
            name, host.address, self.profiles.widest_interval(name)),
            self._reserve(), {'vqos': {
                'allocation_ratio': str(self._sold_share)}}, more or {}))
        # The password of the bus is in it.
        os.chmod(path, 0o640)
        agent = self._start_on(name, AGENT, [
            '--config-file', '/etc/nova-vqos/nova-vqos.conf'])
        process.wait_until(lambda: os.path.exists(self._agent_state(name)),
                           60, f'the agent of host {name}', log=agent.log,
                           alive=agent.alive)
        return agent

    def _agent_state(self, name: str) -> str:
        return self.hosts[name].path('run/nova-vqos/agent.json')

    def _reserve(self) -> config.Settings:
        return {'vqos': {
            'correction_reserve_cu': str(self.correction_reserve_cu)}}

    @contextlib.contextmanager
    def guaranteeing(self, name: str) -> Iterator[None]:
        """Let a host reserve CPU time for servers meanwhile.

        :raises process.LabError: when a step fails
        """
        usual = self.hosts[name].pcpus
        try:
            self.guarantee(name)
            yield
        finally:
            self.profiles.give_pcpus(name, usual)
            openstack.together(lambda: self._restart_scheduler('refuse'),
                               lambda: self._restart_host(name))
            self.wait_for_units()

    def guarantee(self, name: str) -> None:
        """Let a host reserve CPU time for servers.

        The kernel does that only for threads that may run on all pCPUs. So the
        host has all of the machine's, which are equal; another one is to do
        nothing. Its services weigh as much as its guests, as on a stock host,
        and it takes servers without units, too.

        :raises process.LabError: when a step fails
        """
        host = self.hosts[name]
        self.profiles.give_pcpus(name, os.sched_getaffinity(0))
        openstack.together(
            lambda: self._restart_scheduler('allow'),
            lambda: self._restart_host(name, {'vqos_agent': {
                'guarantees_speed': 'true',
                'guaranteed_share': str(_GUARANTEED_SHARE)},
                'vqos': {'allocation_ratio': '1.0'}}, 1.0))
        self.wait_for_units({name: 1.0})
        cgroups.weigh_equally(host.hierarchy, host.cgroup)
        with self.cloud() as cloud:
            process.wait_until(
                lambda: host_stats.TRAIT_GUARANTEE in cloud.traits(name),
                120, f'the guarantee of host {name}', interval_s=0.5,
                log=f'{paths.LOGS}/nova-vqos-agent-{name}.log')

    def _restart_host(self, name: str,
                      for_agent: config.Settings | None = None,
                      allocation_ratio: float | None = None) -> None:
        """Have nova_vqos on a host look at its pCPUs and settings again."""
        host = self.hosts[name]
        cgroups.divide(host.hierarchy, host.cgroup, host.pcpus)
        self.stop_on(name, AGENT)
        # nova-compute is not to read what the last agent wrote.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._agent_state(name))
        self.start_agent(name, for_agent)
        self.sell_units(name, allocation_ratio)

    @contextlib.contextmanager
    def quotas_of_keystone(self) -> Iterator[None]:
        """Let Nova take its quotas from Keystone's unified limits meanwhile.

        :raises process.LabError: when a service does not start
        """
        try:
            self._restart_quota_services(config.unified_limits())
            yield
        finally:
            self._restart_quota_services({})

    def _restart_quota_services(self, more: config.Settings) -> None:
        with self._controller_network():
            for name, daemon, start in (
                    ('nova-api', services.APIS['nova'], _api('nova')),
                    ('nova-conductor', services.CONDUCTOR,
                     services.start_conductor)):
                config.write_ini(
                    f'{paths.etc(name)}/nova.conf',
                    config.merge(config.nova_controller(name), more))
                daemon.stop()
                start()

    @contextlib.contextmanager
    def lost(self, name: str, cloud: client.Cloud) -> Iterator[None]:
        """Let a host have lost its power meanwhile, and Nova know that.

        Its guests and nova-compute are killed. Its agent is not: it sees that.

        :raises process.LabError: when it does not come back
        """
        path = cloud.compute_service(name)
        compute = self.process_on(name, COMPUTE)
        if compute:
            compute.kill()
        self.destroy_guests(name)
        try:
            cloud.compute('PUT', path, {'forced_down': True})
            yield
        finally:
            self.start_compute(name)
            # Nova does not want to before it has seen what was evacuated.
            process.wait_until(
                lambda: cloud.compute(
                    'PUT', path, {'forced_down': False}).status == 200,
                _HOST_LIMIT_S, f'nova-compute of host {name}', interval_s=0.5,
                log=f'{paths.LOGS}/nova-compute-{name}.log')

    def destroy_guests(self, name: str) -> None:
        """End all guests of a host behind Nova's back."""
        with contextlib.closing(libvirt.open(
                self.hosts[name].libvirt_uri)) as connection:
            for domain in connection.listAllDomains(
                    libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
                # It may end by itself.
                with contextlib.suppress(libvirt.libvirtError):
                    domain.destroy()

    def process_on(self, name: str, program: str) -> process.Process | None:
        """:returns: the process of a program that was started on a host."""
        return process.Process.load(_pid_file(name, program))

    def stop_on(self, name: str, program: str) -> None:
        """End a program on a host."""
        running = self.process_on(name, program)
        if running:
            running.stop()

    @contextlib.contextmanager
    def cloud(self) -> Iterator[client.Cloud]:
        """The administrator's session; this thread uses the lab's network."""
        with self._controller_network():
            session = client.Cloud()
            try:
                yield session
            finally:
                session.close()

    def execute(self, argv: list[str], directory: str = '.') -> None:
        """Replace this program by one in the controller's network.

        :param argv: command and arguments; it finds the lab's openrc in its
            environment and the virtual environment's programs in its PATH
        :param directory: where it is to run
        """
        if not self.network.exists(self.network.controller):
            raise process.LabError('the lab is not up')
        os.chdir(directory)
        os.execvpe('nsenter', self.inside(argv), self.environment())

    def inside(self, argv: list[str]) -> list[str]:
        """:returns: a command that runs another in the controller's network"""
        return ['nsenter',
                f'--net={netns.NETNS_DIR}/{self.network.controller}',
                '--', *argv]

    @staticmethod
    def environment() -> dict[str, str]:
        """:returns: this program's, with the administrator's credentials and
            the virtual environment's programs
        """
        return {**os.environ, **config.openrc(),
                'PATH': f'{services.BIN}:{os.environ["PATH"]}'}

    def _controller_network(self) -> contextlib.AbstractContextManager[None]:
        return daemons.network(self.network.controller)

    def _step_inside(self, step: Callable[[], object]) -> Callable[[], None]:
        """:returns: a step that is done in the controller's network."""
        def inside() -> None:
            with self._controller_network():
                step()

        return inside

    def _start_on(self, name: str, program: str,
                  arguments: Iterable[str]) -> process.Process:
        running = self.process_on(name, program)
        if running and running.alive():
            return running
        running = self.hosts[name].popen(
            [f'{services.BIN}/{program}', *arguments],
            # Of the virtual environment: privsep-helper, for one.
            env={'PATH': f'{services.BIN}:{os.environ["PATH"]}:'
                         f'{requirements.SBIN}'},
            log=f'{program}-{name}')
        running.save(_pid_file(name, program))
        return running

    @staticmethod
    def _start_host(host: hosts.Host) -> None:
        host.start()
        ssh.start(host)

    @staticmethod
    def _make_guest() -> None:
        guest.find_kernel()
        guest.build_initramfs(initramfs())

    def _wait_for_hosts(self) -> None:
        with self._controller_network():
            process.wait_until(
                lambda: openstack.hosts_up(tuple(self.hosts)), 120,
                'nova-compute on each host', interval_s=1,
                log=f'{paths.LOGS}/nova-compute-*.log',
                alive=lambda: all(self._runs_on(name, COMPUTE)
                                  for name in self.hosts))

    def _restart_scheduler(self, servers_without_units: str) -> None:
        with self._controller_network():
            services.SCHEDULER.stop()
            config.write_scheduler(
                config.scheduler_with_units(servers_without_units))
            services.start_scheduler()

    def _runs_on(self, name: str, program: str) -> bool:
        running = self.process_on(name, program)
        return running is not None and running.alive()

    def wait_for_units(self, allocation_ratios: Mapping[str, float]
                       = types.MappingProxyType({})) -> None:
        """Wait until the scheduler can give units of both hosts away.

        :param allocation_ratios: of hosts that do not sell what they have
        """
        with self.cloud() as cloud:
            for name in self.hosts:
                def sold(name: str = name) -> bool:
                    units = cloud.inventory(name).get(policy.RESOURCE_CLASS)
                    return (bool(units) and units['reserved'] < units['total']
                            # Of the pCPUs that it has now.
                            and units['total'] // len(self.hosts[name].pcpus)
                            == math.floor(self.profiles.pcpu_cu(name))
                            and units['allocation_ratio']
                            == allocation_ratios.get(name,
                                                     self._sold_share))

                process.wait_until(
                    sold, 120, f'CPU units of host {name} in Placement',
                    log=f'{paths.LOGS}/nova-compute-{name}.log',
                    alive=lambda name=name: self._runs_on(name, COMPUTE),
                    interval_s=0.5)
            self._wait_for_hosts()


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Keep other commands from changing the lab at the same time.

    :raises process.LabError: when another one is at work
    """
    path = f'{paths.ROOT}.lock'
    with open(path, 'w', encoding='ascii') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise process.LabError(
                'another command is changing the lab') from exc
        try:
            yield
        finally:
            os.unlink(path)


def _api(service: str) -> Callable[[], None]:
    return lambda: services.start_api(service)


def initramfs() -> str:
    """:returns: the path of the measuring guest's initramfs."""
    return os.path.join(paths.data('guest'), 'initramfs')


def _pid_file(name: str, program: str) -> str:
    return os.path.join(paths.RUN, f'{program}-{name}.pid')


def _touch(path: str) -> None:
    with open(path, 'w', encoding='ascii'):
        pass
