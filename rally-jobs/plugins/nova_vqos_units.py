# SPDX-License-Identifier: Apache-2.0
"""What a server with CPU units claims in Placement, as Rally measures it."""

from rally.task import atomic
from rally.task import types
from rally.task import validation
from rally_openstack.common import consts
from rally_openstack.task import scenario
from rally_openstack.task.scenarios.nova import utils

RESOURCE_CLASS = 'CUSTOM_VQOS_CPU_UNIT'


@types.convert(image={'type': 'glance_image'}, flavor={'type': 'nova_flavor'})
@validation.add('image_valid_on_flavor', flavor_param='flavor',
                image_param='image')
@validation.add('required_services', services=[consts.Service.NOVA])
@validation.add('required_platform', platform='openstack', users=True,
                admin=True)
@scenario.configure(context={'cleanup@openstack': ['nova']},
                    name='NovaVqos.boot_and_look_at_claim',
                    platform='openstack')
class BootAndLookAtClaim(utils.NovaScenario):
    """Servers with CPU units."""

    def run(self, image, flavor, units, **kwargs):
        """Boot a server, look at its claim, delete it, look again.

        Rally shows how long each of these takes, with as many users at once as
        the task says: the scheduler's filter and the claim are in the first.

        :param image: to boot it from
        :param flavor: with CPU units
        :param units: of the flavor, which it has to claim
        :param kwargs: of the request for a server
        """
        server = self._boot_server(image, flavor, **kwargs)
        self.assertEqual(units, self._claimed_cu(server.id))
        self._delete_server(server)
        self.assertEqual(0, self._claimed_cu(server.id))

    @atomic.action_timer('placement.show_allocations')
    def _claimed_cu(self, uuid):
        session, _plugin = self._admin_clients.keystone.get_session()
        found = session.get(
            f'/allocations/{uuid}',
            endpoint_filter={'service_type': 'placement'}).json()
        return sum(one['resources'].get(RESOURCE_CLASS, 0)
                   for one in found['allocations'].values())
