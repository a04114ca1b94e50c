# SPDX-License-Identifier: Apache-2.0
"""The scheduler's weighers for quantum classes and CPU units.

Both weigh what hosts report in the stats of their compute node
(:mod:`nova_vqos.host_stats`), and are indifferent where a flavor asks for
nothing of ours. They never raise: a host with invalid stats has the worst
weight.
"""

import abc
import math

import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights

from nova_vqos import policy as policies
from nova_vqos.conf import vqos
from nova_vqos.quantum import classes
from nova_vqos.scheduler import fitness
from nova_vqos.scheduler import request

CONF = nova.conf.CONF

# Of server groups.
_SOFT_ANTI_AFFINITY = 'soft-anti-affinity'


class _Weigher(weights.BaseHostWeigher):
    """A weigher with a multiplier of ours.

    :cvar multiplier: name of the option in ``[vqos]``
    """

    multiplier: str

    def __init__(self):
        vqos.register_opts(CONF)

    def weight_multiplier(self, host_state):
        """The option, or that of the host's aggregate."""
        return utils.get_weight_multiplier(
            host_state, self.multiplier, CONF.vqos[self.multiplier])

    def _weigh_object(self, host_state, weight_properties):
        """The weight of one host: for callers that have only one."""
        (weight,) = self.weigh_objects(
            [weights.WeighedHost(host_state, 0.0)], weight_properties)
        return weight


class VqosQuantumWeigher(_Weigher):
    """Hosts whose pools suit a server's quantum class; higher weights win.

    With a positive ``[vqos] quantum_weight_multiplier`` (or that of an
    aggregate) it prefers, for a server of class ``cache``, hosts that have a
    pool with room for it, and separates such servers from polluters. A
    negative one does the opposite; 0 switches it off.

    The weight is from 0 to 1, and not stretched to that: a small difference
    between hosts remains small. It is 0 for a server without a class, or with
    one that no pool serves (``io``, ``spin``, ``default``, ``auto``).
    """

    multiplier = 'quantum_weight_multiplier'
    minval = 0.0
    maxval = 1.0

    def weigh_objects(self, weighed_obj_list, weight_properties):
        """The weights of hosts; the flavor is parsed once for all of them.

        :param weighed_obj_list: nova.scheduler.weights.WeighedHost objects
        :param weight_properties: nova.objects.RequestSpec
        """
        policy = _policy_of(weight_properties)
        weigh = policy and _WEIGHTS.get(policy.quantum_class)
        if not weigh:
            return [0.0] * len(weighed_obj_list)
        found = []
        for host_state in (weighed.obj for weighed in weighed_obj_list):
            stats = request.stats_of(host_state)
            found.append(
                _worst(self, host_state, self.minval, self.maxval)
                if stats is None else
                weigh(stats.quantum_pools, policy, host_state.vcpus_used))
        return found


class _FitWeigher(_Weigher):
    """Prefers the host of which a server leaves least; higher weights win.

    It is indifferent to servers of a group that is to be spread
    (``soft-anti-affinity``): best fit would put them all on one host, and
    outweigh Nova's own weigher of such groups.
    """

    @staticmethod
    @abc.abstractmethod
    def _left_cu(stats, policy):
        """CU that a server leaves of what counts.

        :param stats: nova_vqos.host_stats.HostStats
        :param policy: of the server, with units
        :returns: None where the host does not say
        """

    def weigh_objects(self, weighed_obj_list, weight_properties):
        """The weights of hosts: CU that the server leaves, below 0.

        A host that does not say it counts as the one with the most.

        :param weighed_obj_list: nova.scheduler.weights.WeighedHost objects
        :param weight_properties: nova.objects.RequestSpec
        """
        policy = _policy_of(weight_properties)
        if (policy is None or policy.units is None
                or _is_to_be_spread(weight_properties)):
            return [0.0] * len(weighed_obj_list)
        found = [request.stats_of(weighed.obj) for weighed in weighed_obj_list]
        lefts_cu = [None if stats is None else self._left_cu(stats, policy)
                    for stats in found]
        known_cu = [left_cu for left_cu in lefts_cu if left_cu is not None]
        most_cu = float(max(known_cu, default=0))
        least_cu = float(min(known_cu, default=0))
        return [
            _worst(self, weighed.obj, -most_cu, -least_cu) if stats is None
            else -most_cu if left_cu is None else -float(left_cu)
            for weighed, stats, left_cu in zip(
                weighed_obj_list, found, lefts_cu, strict=True)]


class VqosUnitsWeigher(_FitWeigher):
    """Hosts that a server fills best.

    With a positive ``[vqos] units_weight_multiplier`` (or that of an
    aggregate) it prefers the host that has the fewest CPU units left after
    the server came: best fit, which leaves hosts empty for large servers. A
    negative one spreads servers instead; 0 switches it off.

    The weight is 0 for a server without units.
    """

    multiplier = 'units_weight_multiplier'

    @staticmethod
    def _left_cu(stats, policy):
        # NOTE: Placement has found room; the stats may be a minute older.
        cost_cu = fitness.cost_cu(policy, stats)
        return (None if stats.room_cu is None or cost_cu is None
                else max(0, stats.room_cu - cost_cu))


class VqosPackingWeigher(_FitWeigher):
    """Hosts whose free pieces of pCPUs a server's vCPUs fill best.

    With a positive ``[vqos] packing_weight_multiplier`` (or that of an
    aggregate) it prefers the host where the vCPUs leave the fewest CPU units
    of the pieces that they take. Such a rest may be too small for any other
    vCPU: it is stranded. 0 switches the weigher off.

    Only hosts with ``[vqos] packing = exact`` report pieces. The weight is 0
    for a server without units.
    """

    multiplier = 'packing_weight_multiplier'

    @staticmethod
    def _left_cu(stats, policy):
        cost_cu = fitness.cost_cu(policy, stats)
        if cost_cu is None:
            return None
        vcpus, units = policy.vcpus, math.ceil(cost_cu)
        missing, taken_cu = vcpus, 0
        # The smallest that a vCPU fits first.
        for cu, pcpus in reversed(stats.pieces):
            # NOTE: whole numbers alone, asked for each host.
            each = cu * vcpus // units
            if not each:
                continue
            if each * pcpus >= missing:
                return taken_cu + -(-missing // each) * cu - units
            missing -= each * pcpus
            taken_cu += pcpus * cu
        return None


def all_weighers():
    """All weighers of ours: a name for ``weight_classes``."""
    return [VqosQuantumWeigher, VqosUnitsWeigher, VqosPackingWeigher]


def _policy_of(spec_obj):
    """The policy of a request; None: nothing to weigh by."""
    try:
        return request.policy_of(spec_obj)
    except policies.PolicyError:
        # The filter, or the driver, refuses it.
        return None


def _is_to_be_spread(spec_obj):
    """Whether the servers of a request should be on hosts of their own."""
    group = ('instance_group' in spec_obj) and spec_obj.instance_group
    return bool(group) and group.policy == _SOFT_ANTI_AFFINITY


def _worst(weigher, host_state, low, high):
    """The worst weight, which a negative multiplier turns round."""
    return high if weigher.weight_multiplier(host_state) < 0 else low


def _weigh_pool(pools, policy):
    """How well the pool of its class would serve a server.

    0: there is none. From a half on: there is one, and has room for a part of
    the server's vCPUs, up to all. The agent cuts pools so that each of their
    pCPUs has as many vCPUs as any other (thesis 3.3), and so a pool has room
    for what it has less than that, once the server has come. Where it has
    none, it is made larger, which still moves fewer servers than a new pool.
    """
    size = pools.pools.get(policy.quantum_class)
    if size is None or not size.pcpus:
        return 0.0
    per_pcpu = math.ceil((_vcpus(pools) + policy.vcpus) / _pcpus(pools))
    room = size.pcpus * per_pcpu - size.vcpus
    return 0.5 + 0.5 * min(max(room, 0) / policy.vcpus, 1.0)


def _weigh_cache(pools, policy, vcpus_used):
    """The pool counts for a half, that there are no polluters for the other.

    Only reported polluters count: others may be none.
    """
    polluters = pools.polluters or 0
    # NOTE: no pool is reported where nothing has to be separated.
    vcpus = max(_vcpus(pools), vcpus_used or 0, polluters)
    polluted = polluters / vcpus if vcpus else 0.0
    return (_weigh_pool(pools, policy) + 1.0 - polluted) / 2


def _weigh_neutral(pools, _policy, vcpus_used):
    """How few of the vCPUs there are cache-friendly.

    A flavor's ``neutral`` stands for servers whose work fits the first two
    caches, and for polluters. Which of them a server is can only be seen when
    it runs: so it is put away from what a polluter would harm.
    """
    size = pools.pools.get(classes.CACHE)
    vcpus = max(_vcpus(pools), vcpus_used or 0)
    return 1.0 - size.vcpus / vcpus if size is not None and vcpus else 1.0


_WEIGHTS = {
    classes.CACHE: _weigh_cache,
    classes.NEUTRAL: _weigh_neutral,
}


def _vcpus(pools):
    return sum(size.vcpus for size in pools.pools.values())


def _pcpus(pools):
    return sum(size.pcpus for size in pools.pools.values())
