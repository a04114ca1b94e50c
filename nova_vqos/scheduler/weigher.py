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

"""The scheduler's weighers for quantum classes and CPU units.

Both weigh what hosts say in the stats of their compute node
(:mod:`nova_vqos.host_report`), and are indifferent where a flavor asks for
nothing of ours. They are preferences: a host whose stats are missing or
nonsense is weighed as one of which nothing is known.
"""

import math

import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights

from nova_vqos import policy as policies
from nova_vqos.conf import vqos as vqos_conf
from nova_vqos.quantum import classes
from nova_vqos.quantum import occupancy
from nova_vqos.scheduler import request

CONF = nova.conf.CONF


class VqosQuantumWeigher(weights.BaseHostWeigher):
    """Hosts where a server is among its like; higher weights win.

    With a positive ``[vqos] quantum_weight_multiplier`` (or that of an
    aggregate) hosts are preferred that have a pool with room for the server's
    quantum class, and cache-friendly servers and polluters are kept from each
    other. A negative one turns both round; 0 switches them off.

    The weight is from 0 to 1, and not stretched to that: a small difference
    between hosts is to remain one. It is 0 of a server that has no class, or
    one from which nothing follows (``default``, ``auto``).
    """

    minval = 0.0
    maxval = 1.0

    def __init__(self):
        vqos_conf.register_opts(CONF)

    def weight_multiplier(self, host_state):
        """The option, or that of the host's aggregate."""
        return utils.get_weight_multiplier(
            host_state, 'quantum_weight_multiplier',
            CONF.vqos.quantum_weight_multiplier)

    def weigh_objects(self, weighed_obj_list, weight_properties):
        """The weights of hosts; the flavor is parsed once for all of them.

        :param weighed_obj_list: nova.scheduler.weights.WeighedHost objects
        :param weight_properties: nova.objects.RequestSpec
        """
        policy = _policy_of(weight_properties)
        weigh = policy and _WEIGHTS.get(policy.quantum_class)
        if not weigh:
            return [0.0] * len(weighed_obj_list)
        return [weigh(_occupancy_of(weighed.obj), policy,
                      weighed.obj.vcpus_used)
                for weighed in weighed_obj_list]

    def _weigh_object(self, host_state, weight_properties):
        """The weight of one host: for callers that have only one."""
        (weight,) = self.weigh_objects(
            [weights.WeighedHost(host_state, 0.0)], weight_properties)
        return weight


class VqosUnitsWeigher(weights.BaseHostWeigher):
    """Hosts that a server fills best; higher weights win.

    With a positive ``[vqos] units_weight_multiplier`` (or that of an
    aggregate) the host is preferred that has the fewest CPU units left after
    the server came: best fit, which keeps hosts empty for large servers. A
    negative one spreads servers instead; 0 switches it off.

    A host that does not say what it has left counts as the emptiest. The
    weight is 0 of a server without units.
    """

    def __init__(self):
        vqos_conf.register_opts(CONF)

    def weight_multiplier(self, host_state):
        """The option, or that of the host's aggregate."""
        return utils.get_weight_multiplier(
            host_state, 'units_weight_multiplier',
            CONF.vqos.units_weight_multiplier)

    def weigh_objects(self, weighed_obj_list, weight_properties):
        """The weights of hosts: CU that the server leaves, below 0.

        :param weighed_obj_list: nova.scheduler.weights.WeighedHost objects
        :param weight_properties: nova.objects.RequestSpec
        """
        policy = _policy_of(weight_properties)
        if policy is None or policy.units is None:
            return [0.0] * len(weighed_obj_list)
        lefts_cu = [_left_cu(weighed.obj, policy)
                    for weighed in weighed_obj_list]
        most_cu = max((left_cu for left_cu in lefts_cu if left_cu is not None),
                      default=0)
        return [-float(most_cu if left_cu is None else left_cu)
                for left_cu in lefts_cu]

    def _weigh_object(self, host_state, weight_properties):
        """The weight of one host: for callers that have only one."""
        (weight,) = self.weigh_objects(
            [weights.WeighedHost(host_state, 0.0)], weight_properties)
        return weight


def all_weighers():
    """All weighers of ours: a name for ``weight_classes``."""
    return [VqosQuantumWeigher, VqosUnitsWeigher]


def _policy_of(spec_obj):
    """The policy of a request; None: nothing to weigh by."""
    try:
        return request.policy_of(spec_obj)
    except policies.PolicyError:
        # The filter, or the driver, refuses it.
        return None


def _occupancy_of(host_state):
    return occupancy.from_stat(
        request.stats_of(host_state).get('vqos_quantum_pools'))


def _left_cu(host_state, policy):
    """CU that a server would leave on a host, None if that is not known."""
    room_cu = request.stats_of(host_state).get('vqos_room_cu')
    if not (isinstance(room_cu, str) and room_cu.isascii()
            and room_cu.isdecimal() and len(room_cu) <= _MAX_DIGITS):
        return None
    # NOTE: Placement has found room; the stats may be a minute older.
    return max(0, int(room_cu) - policy.units)


def _weigh_like(told, policy, _vcpus_used):
    """How well the pool of its class would take a server.

    0: there is none. From a half on: there is one, and has room for a part of
    the server's vCPUs, up to all. The agent cuts pools so that each of their
    pCPUs has as many vCPUs as any other (thesis 3.3), and so a pool has room
    for what it has less than that, once the server has come. Where it has
    none, it is made larger, which still moves fewer servers than a new pool.
    """
    size = told.pools.get(policy.quantum_class)
    if size is None or not size.pcpus:
        return 0.0
    per_pcpu = math.ceil((_vcpus(told) + policy.vcpus) / _pcpus(told))
    room = size.pcpus * per_pcpu - size.vcpus
    return 0.5 + 0.5 * min(max(room, 0) / policy.vcpus, 1.0)


def _weigh_cache(told, policy, vcpus_used):
    """The pool counts for a half, that there are no polluters for the other.

    Those that are told, and no others: what no one has recognised as a
    polluter may be none.
    """
    polluters = told.polluters or 0
    # NOTE: no pool is told of where nothing has to be separated.
    vcpus = max(_vcpus(told), vcpus_used or 0, polluters)
    polluted = polluters / vcpus if vcpus else 0.0
    like = _weigh_like(told, policy, vcpus_used)
    return (like + 1.0 - polluted) / 2


def _weigh_neutral(told, _policy, vcpus_used):
    """How few of the vCPUs there are cache-friendly.

    A flavor's ``neutral`` stands for servers whose work fits the first two
    caches, and for polluters. Which of them a server is nobody knows before
    it runs: so it is kept away from what a polluter would harm.
    """
    size = told.pools.get(classes.CACHE)
    vcpus = max(_vcpus(told), vcpus_used or 0)
    return 1.0 - size.vcpus / vcpus if size is not None and vcpus else 1.0


_WEIGHTS = {
    classes.IO: _weigh_like,
    classes.SPIN: _weigh_like,
    classes.CACHE: _weigh_cache,
    classes.NEUTRAL: _weigh_neutral,
}

# Of what Placement can count.
_MAX_DIGITS = 10


def _vcpus(told):
    return sum(size.vcpus for size in told.pools.values())


def _pcpus(told):
    return sum(size.pcpus for size in told.pools.values())
