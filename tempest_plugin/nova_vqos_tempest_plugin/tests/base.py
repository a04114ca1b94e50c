# SPDX-License-Identifier: Apache-2.0
"""What the tests have in common."""

import contextlib
import time

from tempest import config
from tempest import exceptions
from tempest.api.compute import base
from tempest.common import waiters
from tempest.lib import exceptions as lib_exc
from tempest.lib.common.utils import data_utils

from nova_vqos import policy
from nova_vqos.calibration import guest

CONF = config.CONF

# So many, so that the pauses that a cap makes are a small part of them.
_ROUNDS = 4
_POLL_INTERVAL_S = 1
# Extra specs are validated from here on.
VALIDATED = '2.86'


class UnitsTestCase(base.BaseV2ComputeAdminTest):
    """Servers with CPU units, and what Placement says of them."""

    min_microversion = '2.74'
    create_default_network = False

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.placement = cls.os_admin.placement_client
        cls.providers = cls.os_admin.resource_providers_client

    def make_flavor(self, units, *, vcpus=1, **extra_specs):
        """A flavor with units, deleted with the test.

        :returns: its id
        """
        image = self.images_client.show_image(CONF.compute.image_ref)
        known = self.flavors_client.show_flavor(
            CONF.compute.flavor_ref)['flavor']
        flavor = self.create_flavor(
            ram=max(known['ram'], image.get('min_ram', 0)), vcpus=vcpus,
            disk=known['disk'])
        self.admin_flavors_client.set_flavor_extra_spec(
            flavor['id'], **{policy.UNITS_KEY: str(units), **extra_specs})
        return flavor['id']

    def boot(self, flavor, *, wait_until='ACTIVE', host=None, zone=None,
             image=None):
        """A server, deleted with the test.

        :param host: where to, through the scheduler
        :param wait_until: None: it may fail
        :returns: its id
        """
        arguments = {'host': host} if host else {}
        if zone:
            arguments['availability_zone'] = zone
        # To name a host, and to see it, is the administrator's.
        client = self.admin_servers_client
        server = client.create_server(
            name=data_utils.rand_name('vqos'), flavorRef=flavor,
            imageRef=image or CONF.compute.image_ref, networks='none',
            **arguments)['server']['id']
        self.addCleanup(waiters.wait_for_server_termination, client, server,
                        ignore_error=True)
        self.addCleanup(self.delete_if_there, server)
        if wait_until:
            waiters.wait_for_server_status(client, server, wait_until)
        return server

    def delete_if_there(self, server):
        """Delete a server, unless it is gone."""
        with contextlib.suppress(lib_exc.NotFound):
            self.admin_servers_client.delete_server(server)

    def refusal(self, server):
        """What a server that finds no host says; fails where it boots."""
        self.assertRaises(
            exceptions.BuildErrorException, waiters.wait_for_server_status,
            self.admin_servers_client, server, 'ACTIVE')
        shown = self.admin_servers_client.show_server(server)['server']
        self.assertEqual('ERROR', shown['status'])
        return shown['fault']['message']

    def allocated(self, server):
        """Units that a server has claimed, by the host's name."""
        allocations = self.placement.list_allocations(server)['allocations']
        return {
            self.providers.show_resource_provider(uuid)['name']:
            one['resources'].get(policy.RESOURCE_CLASS, 0)
            for uuid, one in allocations.items()}

    def free_units(self, host):
        """Units that a host has left, and the most that one server can have.

        Where the host sells them several times over, that is less.
        """
        (provider,) = self.providers.list_resource_providers(name=host)[
            'resource_providers']
        inventory = self.providers.list_resource_provider_inventories(
            provider['uuid'])['inventories'][policy.RESOURCE_CLASS]
        used = self.providers.list_resource_provider_usages(
            provider['uuid'])['usages'].get(policy.RESOURCE_CLASS, 0)
        real = inventory['total'] - inventory['reserved']
        return int(real * inventory['allocation_ratio']) - used, real


class SpeedTestCase(UnitsTestCase):
    """Servers whose guests tell how fast they are."""

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        options = CONF.nova_vqos
        if not (options.work_image_ref and options.reference_score):
            raise cls.skipException(
                '[nova_vqos] work_image_ref and reference_score do not say '
                'what to measure speed with')
        if not CONF.compute_feature_enabled.console_output:
            raise cls.skipException(
                'the console, on which guests print, is not available')

    def check_speed(self, server, units):
        """See that a guest is as fast as promised since it came here.

        :param units: CU that it was promised
        """
        rounds = self._rounds(server)
        events = sum(one.events for one in rounds)
        seconds = sum(one.elapsed_s for one in rounds)
        delivered = 100 * events / seconds / CONF.nova_vqos.reference_score
        tolerance = CONF.nova_vqos.speed_tolerance
        self.assertLessEqual(
            abs(delivered / units - 1), tolerance,
            f'{delivered:.1f} of {units} CU on host '
            f'{self.get_host_for_server(server)}, which is not within '
            f'{tolerance:.0%}')

    def _rounds(self, server):
        """The first rounds of work on the console of this host."""
        deadline = time.monotonic() + CONF.nova_vqos.speed_timeout
        while True:
            text = self.admin_servers_client.get_console_output(server)[
                'output']
            found = guest.rounds(text.splitlines())
            if len(found) >= _ROUNDS:
                return found
            if time.monotonic() > deadline:
                self.fail(f'server {server} printed {len(found)} of '
                          f'{_ROUNDS} rounds of work within '
                          f'{CONF.nova_vqos.speed_timeout} s; its console '
                          f'ends with {text[-300:]!r}')
            time.sleep(_POLL_INTERVAL_S)


class TwoHostsMixin:
    """Needs hosts between which servers can be migrated live."""

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.compute_feature_enabled.live_migration:
            raise cls.skipException('live migration is not available')
        if CONF.compute.min_compute_nodes < 2:
            raise cls.skipException('there are less than two hosts')

    def migrate(self, server, host):
        """Migrate a server live, and wait for it."""
        self.admin_servers_client.live_migrate_server(
            server, host=host, block_migration='auto')
        waiters.wait_for_server_status(self.admin_servers_client, server,
                                       'ACTIVE')
        self.assertEqual(host, self.get_host_for_server(server))


class UnequalHostsMixin:
    """Needs a host that is too slow for what another one can give."""

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        options = CONF.nova_vqos
        if not (options.too_fast_units and options.slow_host):
            raise cls.skipException(
                '[nova_vqos] too_fast_units and slow_host do not name a host '
                'that is slower than another')


class SingleHostMixin:
    """Needs a zone of one host, for what must stay on it."""

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.nova_vqos.single_host_zone:
            raise cls.skipException(
                '[nova_vqos] single_host_zone names no zone of one host')
