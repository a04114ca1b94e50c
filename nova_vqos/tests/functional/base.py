# SPDX-License-Identifier: Apache-2.0
"""A cloud in one process: Nova's services, Placement, hosts of fake libvirt.

Real are API, scheduler, conductor, computes (each with the driver of
nova_vqos), Placement, and the databases (SQLite); faked are libvirt, Glance,
Neutron, Cinder, and the message bus (in memory). Measured speed is not here.
"""

import collections
import functools
import importlib.metadata
import re
import types

import fixtures
from lxml import etree
from nova.scheduler import request_filter
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base
import os_traits
import oslo_messaging
from placement.objects import research_context

from nova import conf
from nova import context
from nova import objects
from nova import rpc
from nova import utils
from nova_vqos import files as documents
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.agent import manager
from nova_vqos.agent import rpcapi
from nova_vqos.conf import vqos
from nova_vqos.hooks import rewrite
from nova_vqos.tests import functional
from nova_vqos.tests.functional import fakes
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.functional import nova33
from nova_vqos.tests.functional import waits

CONF = conf.CONF
vqos.register_opts(CONF)

#: Of Nova's fake Glance.
IMAGE_ID = '155d900f-4e14-4e4c-a73d-069cbf4541e6'

RESOURCE_CLASS = policy.RESOURCE_CLASS
UNITS_KEY = policy.UNITS_KEY

#: Extra specs are validated at the API from here on.
VALIDATED = '2.86'
NOT_VALIDATED = '2.85'

Tunables = collections.namedtuple('Tunables', 'quota period shares')


@functools.cache
def _api_paste():
    """Nova's api-paste.ini, without the API that ended with version 2.0.

    To make it as well takes as long as to make the one that is used.

    NOTE: Nova's fixture looks for the file in a source tree.
    """
    for file in importlib.metadata.files('nova') or ():
        if file.name == 'api-paste.ini':
            return re.sub(r'^/v2/\+: .*\n', '', file.read_text(),
                          flags=re.MULTILINE)
    raise RuntimeError('the installed Nova has no api-paste.ini')


class VqosTestCase(waits.WaitsMixin, base.ServersTestBase):
    """Starts everything but the computes; see :meth:`start_host`."""

    ADMIN_API = True
    microversion = 'latest'
    # NOTE: the driver's wake-up of the agent has to stay a cast: Nova's
    # fixture would make it a call that waits for an agent that isn't there.
    CAST_AS_CALL = False
    ADDITIONAL_FILTERS = ['VqosFilter']
    COMPUTE_DRIVER = 'vqos.VqosLibvirtDriver'
    #: {hostname: weight} to have the scheduler prefer a host; None: stock.
    HOST_WEIGHTS: dict[str, int] | None = None
    #: Whether Placement knows the traits of nova_vqos, as after its first day.
    #: To have the first computes make them takes as long as to boot a server.
    KNOWN_TRAITS = True

    def setUp(self):
        path = self.useFixture(fixtures.TempDir()).join('api-paste.ini')
        with open(path, 'w', encoding='utf-8') as paste:
            paste.write(_api_paste())
        self.flags(api_paste_config=path, group='wsgi')
        self.flags(available_filters=[
            'nova.scheduler.filters.all_filters',
            'nova_vqos.scheduler.filter.VqosFilter',
        ], group='filter_scheduler')
        # A fifth of the time of a test, to check Nova's own answers.
        self.flags(response_validation='ignore', group='api')
        # What Nova's other tests need of policies, which are then replaced.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.PolicyFixture', fixtures.Fixture))
        if self.KNOWN_TRAITS:
            self.useFixture(fixtures.MonkeyPatch(
                'placement.objects.trait.os_traits',
                types.SimpleNamespace(
                    is_custom=os_traits.is_custom,
                    get_traits=lambda: [
                        *os_traits.get_traits(), *host_stats.ASKED_TRAITS,
                        host_stats.TRAIT_HOOK])))
        # Our filter adds to it what lives as long as a scheduler.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
            list(request_filter.ALL_REQUEST_FILTERS)))
        self.host_files = {}
        # Before Nova's own fixtures, so that they outlast their clean-up.
        executors = self.useFixture(fakes.ExecutorShutdownFixture())
        self.useFixture(fakes.ConnectionPoolFixture())
        if functional.THREADED and functional.NOVA < 34:
            self.useFixture(nova33.ThreadsFixture(self.id()))
        super().setUp()
        executors.look_seldom()
        self.useFixture(fakes.KeptXMLFixture())
        self.migrations = self.useFixture(
            fakes.LiveMigrationFixture(self.computes))
        # NOTE: Nova's fixture says 16 of each host; here a host's pCPUs are
        # those of its own connection, so that hosts may differ.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.host.Host.get_online_cpus',
            lambda host: set(range(host.get_connection().host_info.cpus))))
        # Hosts of the tests are alike whatever machine runs them: see
        # host_files.FINGERPRINT; without libvirt's hook until a test says
        # otherwise.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.profile.fingerprint.of_host',
            lambda emulator=None: dict(host_files.FINGERPRINT)))
        self.hook_path = None
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.hooks.is_installed',
            lambda: self.hook_path is not None))
        # Whatever this machine has: weights are of cgroup v1.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.cputune.host_cgroup_version', lambda: 1))
        # There are no disks to move: this is the stock driver's part only.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.LibvirtDriver.migrate_disk_and_power_off',
            _power_off_without_disks))
        # No agent answers unless a test starts one.
        self._wait_for_agents(0.01)

    def _setup_compute_service(self):
        self.flags(compute_driver=self.COMPUTE_DRIVER)

    def _setup_scheduler_service(self):
        if self.HOST_WEIGHTS is not None:
            self.useFixture(nova_fixtures.HostNameWeigherFixture(
                weights=self.HOST_WEIGHTS))
        return super()._setup_scheduler_service()

    def _clear_attrs(self):
        # NOTE: Nova's clean-up deletes all public attributes; pytest sets
        # the test method as one, and deletes it itself.
        name = self._testMethodName
        method = self.__dict__.get(name)
        super()._clear_attrs()
        if method is not None:
            setattr(self, name, method)

    # Hosts.

    def start_host(self, hostname, coefficient=1.0, *, pcpus=4, files=None,
                   cell=None):
        """Start a calibrated compute host with a living agent.

        :param coefficient: of all its pCPUs; None: not calibrated
        :param files: its HostFiles; None: new ones
        :param cell: its name; None: the first one
        :returns: its HostFiles
        """
        if files is None:
            files = self.useFixture(host_files.HostFiles(hostname))
        self.host_files[hostname] = files
        if coefficient is not None:
            files.calibrate({'0-%d' % (pcpus - 1): coefficient})
        files.agent_lives()
        info = fakelibvirt.HostInfo(
            cpu_nodes=1, cpu_sockets=1, cpu_cores=pcpus, cpu_threads=1)
        self.start_compute(hostname, host_info=info, cell_name=cell)
        return files

    def start_compute(self, hostname, *args, **kwargs):
        # All computes of this process share one configuration. The driver
        # reads these when it is made, and keeps them: here they are set
        # to this host's files for just that, also at a restart.
        files = self.host_files[hostname]
        self.flags(profile_path=files.profile_path,
                   agent_state_path=files.agent_state_path,
                   verification_path=files.verification_path,
                   compute_state_path=files.compute_state_path, group='vqos')
        return super().start_compute(hostname, *args, **kwargs)

    def start_agent(self, hostname):
        """Answer the messages to a host's agent that ask for no server.

        The agent's own endpoint, without a hypervisor behind it.
        """
        self._wait_for_agents(30)
        server = oslo_messaging.get_rpc_server(
            rpc.TRANSPORT,
            oslo_messaging.Target(exchange=rpcapi.EXCHANGE,
                                  topic=rpcapi.TOPIC, server=hostname),
            [manager.AgentManager(
                _NoHypervisor(), hostname, compute_state_path=self.host_files[
                    hostname].compute_state_path)],
            executor='threading',
            serializer=oslo_messaging.NoOpSerializer())
        server.start()
        self.addCleanup(server.wait)
        self.addCleanup(server.stop)

    def _wait_for_agents(self, limit_s):
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.agent.rpcapi.CHECK_TIMEOUT_S', limit_s))

    def hook(self, hostname, xml):
        """What nova_vqos's libvirt hook on a host makes of an incoming XML.

        The function, not the program: libvirt, which would start it, is
        faked. As with ``on_error = pass``, what fails changes nothing.
        """
        settings = rewrite.Settings()
        settings.profile_path = self.host_files[hostname].profile_path
        try:
            received, _done = rewrite.rewritten(xml.encode(), settings)
        except (documents.FileError, ValueError):
            return xml
        return received.decode()

    def host_dies(self, hostname):
        """Stop a host's compute service, as fencing leaves it."""
        self.computes[hostname].stop()
        service = self.api.get_services(
            host=hostname, binary='nova-compute')[0]
        self.api.put_service_force_down(service['id'], True)

    def kill_compute(self, hostname, migrating=None):
        """End a host's compute service as ``kill -9`` does, and start it.

        :param migrating: a server that it is just sending; None: there is
            none
        """
        manager = self.computes[hostname].manager
        # Of Nova 34, and what is there in 33 as well.
        manager.graceful_shutdown = lambda *_arguments: None
        manager.cleanup_host = lambda: None
        if migrating is not None:
            self.wait_for(self.migrations.kill_watcher(migrating['id']),
                          lambda: 'the end of the watching thread')
        self.restart_compute_service(hostname)

    # Flavors and servers.

    def make_flavor(self, units=None, vcpus=1, specs=None, *,
                    version=VALIDATED):
        """:returns: the id of a new flavor of these extra specs

        :param units: CU of a server; None: none
        :param version: of the API that it is made with
        """
        extra_specs = dict(specs or {})
        if units is not None:
            extra_specs[UNITS_KEY] = str(units)
        with utils.temporary_mutation(self.api, microversion=version):
            return self._create_flavor(
                vcpu=vcpus, memory_mb=256, disk=1, ephemeral=0,
                extra_spec=extra_specs or None)

    def boot(self, flavor_id, host=None, *, az=None, image=IMAGE_ID,
             expected_state='ACTIVE'):
        """:param host: ask the scheduler for it, filters are not skipped

        :param az: ``nova:HOST`` skips them
        """
        return self._create_server(
            image_uuid=image, flavor_id=flavor_id, networks='none',
            host=host, az=az, expected_state=expected_state)

    def host_of(self, server):
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def domain(self, server, host=None):
        """The fake libvirt's domain of a server."""
        connection = self.computes[
            host or self.row(server['id']).host
        ].driver._host.get_connection()
        return connection.lookupByUUIDString(server['id'])

    def tunables(self, server, host=None):
        """Quota, period, shares of the XML of a server; None: not there."""
        return tunables_of(self.domain(server, host).XMLDesc(0))

    # What others see.

    def allocated(self, consumer_id):
        """{hostname: CU} that a server or a migration holds."""
        names = {uuid: name for name, uuid in self.compute_rp_uuids.items()}
        return {
            names[uuid]: allocation['resources'].get(RESOURCE_CLASS, 0)
            for uuid, allocation in self._get_allocations_by_server_uuid(
                consumer_id).items()}

    def answer_last(self, host):
        """Have Placement name a host after all others.

        Its own order of hosts is by chance, another one in each process.
        """
        uuid = self._get_provider_uuid_by_host(host)
        stock = research_context.RequestWideSearchContext.limit_results

        def limit(this, requests, summaries):
            return stock(this, sorted(
                requests,
                key=lambda one: one.anchor_root_provider_uuid == uuid),
                summaries)

        self.useFixture(fixtures.MonkeyPatch(
            'placement.objects.research_context.RequestWideSearchContext.'
            'limit_results', limit))

    def inventory(self, hostname):
        """The host's inventory of CU; None: it has none."""
        return self._get_provider_inventory(
            self.compute_rp_uuids[hostname]).get(RESOURCE_CLASS)

    def used(self, hostname):
        """CU of the host that are claimed."""
        return self._get_provider_usages(
            self.compute_rp_uuids[hostname]).get(RESOURCE_CLASS, 0)

    def wait_until_used(self, hostname, units):
        """Claims are given up a little after a move or deletion ends."""
        self.wait_for(
            lambda: self.used(hostname) == units,
            lambda: '%d CU of %s used, but %d' % (
                units, hostname, self.used(hostname)))

    def traits(self, hostname):
        """The host's traits that are ours."""
        return {trait for trait in self._get_provider_traits(
                    self.compute_rp_uuids[hostname])
                if trait.startswith('CUSTOM_VQOS')}

    def compute_node(self, hostname):
        """As the scheduler reads it."""
        mapping = self.host_mappings[hostname].cell_mapping
        with context.target_cell(context.get_admin_context(), mapping) as cell:
            return objects.ComputeNode.get_first_node_by_host_for_old_compat(
                cell, hostname)

    def stats(self, hostname):
        """Those of the host's stats that are ours."""
        return {key: value
                for key, value in self.compute_node(hostname).stats.items()
                if key.startswith('vqos_')}

    def log(self):
        return self.stdlog.logger.output


class _NoHypervisor:
    """The loop of an agent that looks after no server."""

    def wake(self, server_uuid):
        pass


def _power_off_without_disks(driver, context, instance, *args, **kwargs):
    driver.power_off(instance)
    return '[]'


def tunables_of(xml):
    """Quota, period, shares in a domain's XML; None: not there."""
    cputune = etree.fromstring(xml).find('./cputune')
    if cputune is None:
        return Tunables(None, None, None)
    return Tunables(*(
        None if cputune.find(name) is None else int(cputune.find(name).text)
        for name in Tunables._fields))
