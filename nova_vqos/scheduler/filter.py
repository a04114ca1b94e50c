# SPDX-License-Identifier: Apache-2.0
"""The scheduler filter for CPU units.

Placement counts units. It does not know how fast a single pCPU is, how many
of a host's units are left on one of its core types, what the host offers
beside units, and whether its agent is alive. Hosts report that in the stats of
their compute node (:mod:`nova_vqos.host_stats`);
:mod:`nova_vqos.scheduler.fitness` judges by them.
"""

import weakref

import nova.conf
from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from nova_vqos import core_types
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos.conf import vqos
from nova_vqos.scheduler import fitness
from nova_vqos.scheduler import prefilter
from nova_vqos.scheduler import request

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A request may be refused by ten thousand hosts: writing as many lines takes
# longer than all filters together.
_LINES_AT_INFO = 20


class VqosFilter(filters.BaseHostFilter):
    """Hosts that can keep the promise of a flavor.

    Logs for each refused host what was asked and what the host has: at level
    info for the first hosts of a request, at level debug for the others. A
    host with invalid stats is refused alone, see
    :func:`nova_vqos.scheduler.request.stats_of`. For a server without units
    one stat of each host is read, or none at all with ``[vqos]
    servers_without_units = allow``.

    Not run on rebuild: there the server stays on its host, and its flavor as
    it is. A host that accepts no new servers may still rebuild its own.
    """

    RUN_ON_REBUILD = False

    def __init__(self):
        vqos.register_opts(CONF)
        prefilter.install()
        # Of requests for several servers, where Placement does not count all
        # that they take: what the request itself leaves of hosts, see _Left.
        self._left = weakref.WeakKeyDictionary()

    def run_filter_for_index(self, index):
        """Whether to run again for a later server of a request.

        All of them have one flavor, and Placement counts their units. It does
        not count how many units each core type has left, nor what their kind
        of work takes beyond their units.
        """
        return index == 0 or bool(self._left)

    def filter_all(self, filter_obj_list, spec_obj):
        """The hosts that pass; the flavor is parsed once for all of them.

        :param filter_obj_list: nova.scheduler.host_manager.HostState objects
        :param spec_obj: nova.objects.RequestSpec
        """
        if utils.request_is_rebuild(spec_obj):
            return filter_obj_list
        try:
            policy = request.policy_of(spec_obj)
        except policies.PolicyError as error:
            LOG.info('Server %(server)s finds no host: %(error)s',
                     {'server': spec_obj.instance_uuid, 'error': error})
            return []
        if fitness.asks_for_nothing(policy):
            return self._without_units(filter_obj_list, spec_obj)
        is_pinned = spec_obj.numa_topology is not None
        judge = fitness.Judge(
            policy, agent_max_age_s=CONF.vqos.agent_max_age_s,
            in_one_type=not is_pinned)
        left = None
        in_one_type = core_types.in_one_type(policy, is_pinned=is_pinned)
        if (policy.units is not None and (in_one_type or policy.work)
                and 'num_instances' in spec_obj
                and spec_obj.num_instances > 1):
            left = _Left(policy, in_one_type, self._left.get(spec_obj, {}))
        if policy.units is None:
            filter_obj_list = self._without_units(filter_obj_list, spec_obj)
        passed = []
        refusals = []
        for host_state in filter_obj_list:
            stats = request.stats_of(host_state)
            if stats is None:
                continue
            reason = judge.refusal(
                left.stats(host_state, stats) if left else stats)
            if reason:
                refusals.append((host_state, reason))
            else:
                passed.append(host_state)
        if left and left.by_host:
            self._left[spec_obj] = left.by_host
        _log_refusals(refusals, judge, spec_obj)
        return passed

    def host_passes(self, host_state, filter_properties):
        """Whether one host passes: for callers that have only one."""
        return bool(self.filter_all([host_state], filter_properties))

    @staticmethod
    def _without_units(host_states, spec_obj):
        """Servers without units claim none, and would use those of others."""
        if CONF.vqos.servers_without_units == 'allow':
            return host_states
        passed = []
        refused = []
        for host_state in host_states:
            if host_stats.sells_units(request.raw_stats_of(host_state)):
                refused.append(host_state)
            else:
                passed.append(host_state)
        if refused:
            _log_reserved(refused, spec_obj)
        return passed


class _Left:
    """What the servers of one request leave of hosts.

    :ivar by_host: servers that a host has, and its stats after them; only of
        hosts whose stats the request changes
    """

    def __init__(self, policy, in_one_type, by_host):
        """
        :param policy: of each of the servers, with units
        :param in_one_type: whether each runs on one core type
        :param by_host: what is known already
        """
        self._policy = policy
        self._in_one_type = in_one_type
        self.by_host = by_host

    def stats(self, host_state, stats):
        """The stats of a host, less what the request itself uses."""
        if not (self._policy.work
                or (self._in_one_type and stats.core_types)):
            return stats
        key = host_state.host, host_state.nodename
        servers, stats = self.by_host.get(
            key, (host_state.num_instances, stats))
        while servers < host_state.num_instances:
            servers += 1
            stats = fitness.stats_with_server(
                self._policy, stats, in_one_type=self._in_one_type)
        self.by_host[key] = servers, stats
        return stats


def _log_refusals(refusals, judge, spec_obj):
    for number, (host_state, reason) in enumerate(refusals):
        if number == _LINES_AT_INFO:
            LOG.info('%(more)d more hosts are refused for server %(server)s: '
                     'level debug has a line for each',
                     {'more': len(refusals) - number,
                      'server': spec_obj.instance_uuid})
            if not LOG.isEnabledFor(logging.DEBUG):
                return
        LOG.log(logging.INFO if number < _LINES_AT_INFO else logging.DEBUG,
                'Host %(host)s is refused for server %(server)s, which asks '
                'for %(asked)s: %(reason)s',
                {'host': host_state.host, 'server': spec_obj.instance_uuid,
                 'asked': judge.asked, 'reason': reason})


def _log_reserved(host_states, spec_obj):
    """One line for all: servers without units are the common case."""
    more = len(host_states) - _LINES_AT_INFO
    LOG.info('Server %(server)s asks for no CPU units, and is refused by '
             'these hosts, which are reserved for servers with units ([vqos] '
             'servers_without_units): %(hosts)s%(more)s',
             {'server': spec_obj.instance_uuid,
              'hosts': ', '.join(host_state.host for host_state
                                 in host_states[:_LINES_AT_INFO]),
              'more': f' and {more} more' if more > 0 else ''})
