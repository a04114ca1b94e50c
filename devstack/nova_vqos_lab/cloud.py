# SPDX-License-Identifier: Apache-2.0
"""The two-host cloud: make it, deploy nova_vqos on it, remove it."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import datetime
import fcntl
import math
import os
import shutil
import time
import types

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import config
from nova_vqos_lab import daemons
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import node
from nova_vqos_lab import openstack
from nova_vqos_lab import pace
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import requirements
from nova_vqos_lab import services
from nova_vqos_lab import ssh

_PCPUS_EACH = 3
# Of the lab's directory: what `down` removes there, and nothing else.
_CONTENT = ('data', 'etc', 'hosts', 'log', 'nova', 'run', 'openrc', 'tempest')


class Lab:
    """The lab on this machine, whether it runs or not.

    Each host has three pCPUs, or all that the machine has, so that a server
    may have several vCPUs. Where the hosts have some in common, each sells
    half of what it has.

    :ivar hosts: its two hosts, by name
    :ivar nodes: what of the cloud runs on them, by name
    :ivar profiles: of the hosts
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
        self.nodes = {name: node.Node(host, self.profiles, self._sold_share)
                      for name, host in self.hosts.items()}
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
                self.inside_network(services.start_mariadb),
                self.inside_network(services.start_rabbitmq),
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
                lambda: self.restart_scheduler(servers_without_units),
                *(lambda name=name: self._deploy_on(
                    name, servers_without_units) for name in self.hosts))
            self.wait_for_units()
        _touch(self._deployed_mark)

    def _deploy_on(self, name: str, servers_without_units: str) -> None:
        host = self.hosts[name]
        config.write_ini(host.path('etc/nova-vqos/hook.conf'), config.hook())
        self._install_hook(host)
        # libvirt looks for hooks when it starts.
        host.stop_libvirtd()
        host.start_libvirtd()
        self.nodes[name].start_agent()
        self.nodes[name].sell_units(
            servers_without_units=servers_without_units)

    def upgrade_host(self, name: str) -> None:
        """Let a host have the nova_vqos that is installed now.

        :raises process.LabError: when a step fails
        """
        one = self.nodes[name]
        self._install_hook(self.hosts[name])
        one.stop(node.AGENT)
        one.start_agent_again()
        one.restart_compute()
        since = datetime.datetime.now(datetime.UTC)
        with self.cloud() as cloud:
            cloud.wait_for_compute(name, since)

    @staticmethod
    def _install_hook(host: hosts.Host) -> None:
        host.run([f'{services.BIN}/nova-vqos-libvirt-hook', '--install',
                  '--trust', paths.OWNER])

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
                *(daemon.kill for daemon in (
                    *services.ALL, *services.ON_REQUEST)))
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
        for daemon in services.ON_REQUEST:
            if daemon.alive():
                yield daemon.name, daemon.pid
        yield from self.running_on_hosts()

    def running_on_hosts(self) -> Iterator[tuple[str, int | None]]:
        """The same of the programs on hosts."""
        agents = (node.AGENT,) if self.is_deployed else ()
        for one in self.nodes.values():
            yield from one.running(node.COMPUTE, *agents)

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
            with self.controller_network():
                services.start_mariadb()
                services.start_rabbitmq()
                openstack.together(*map(_api, services.APIS))
                services.start_conductor()
                services.start_scheduler()
            for one in self.nodes.values():
                if self.is_deployed:
                    one.start_agent_again()
                one.start_compute()
            self._wait_for_hosts()
            if self.is_deployed:
                self.wait_for_units()

    def _start_services(self) -> None:
        with self.controller_network():
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
            for one in self.nodes.values():
                one.write_compute()
                one.start_compute()
            self._wait_for_hosts()

    @contextlib.contextmanager
    def cloud(self) -> Iterator[client.Cloud]:
        """The administrator's session; this thread uses the lab's network."""
        with self.controller_network():
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

    def controller_network(self) -> contextlib.AbstractContextManager[None]:
        """Let this thread use the network of the cloud's services."""
        return daemons.network(self.network.controller)

    def inside_network(self, step: Callable[[], object]) -> Callable[[], None]:
        """:returns: a step that is done in the controller's network"""
        def inside() -> None:
            with self.controller_network():
                step()

        return inside

    @staticmethod
    def _start_host(host: hosts.Host) -> None:
        host.start()
        ssh.start(host)

    @staticmethod
    def _make_guest() -> None:
        guest.find_kernel()
        guest.build_initramfs(initramfs())

    def _wait_for_hosts(self) -> None:
        with self.controller_network():
            process.wait_until(
                lambda: openstack.hosts_up(tuple(self.hosts)), 120,
                'nova-compute on each host', interval_s=1,
                log=f'{paths.LOGS}/nova-compute-*.log',
                alive=lambda: all(one.runs(node.COMPUTE)
                                  for one in self.nodes.values()))

    def restart_scheduler(self, servers_without_units: str) -> None:
        """Start nova-scheduler anew, with nova_vqos' filter.

        :param servers_without_units: 'refuse' or 'allow', see the option
        """
        with self.controller_network():
            services.SCHEDULER.stop()
            config.write_scheduler(
                config.scheduler_with_units(servers_without_units))
            services.start_scheduler()

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
                    alive=lambda name=name: self.nodes[name].runs(
                        node.COMPUTE),
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


def _touch(path: str) -> None:
    with open(path, 'w', encoding='ascii'):
        pass
