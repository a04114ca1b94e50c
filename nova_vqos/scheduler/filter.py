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

"""The scheduler filter for CPU units.

Placement counts units; what it cannot tell is how fast a single pCPU is, what
of a host's units is left in one class of its pCPUs, what the host offers
beside units, and whether its agent is alive. Hosts say so in the stats of
their compute node (:mod:`nova_vqos.host_report`); what follows from them,
:mod:`nova_vqos.scheduler.fitness` judges.
"""

import weakref

import nova.conf
from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from nova_vqos import policy as policies
from nova_vqos.conf import vqos as vqos_conf
from nova_vqos.scheduler import fitness
from nova_vqos.scheduler import request as requests

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A request may be refused by ten thousand hosts: writing as many lines takes
# longer than all filters together.
_LINES_AT_INFO = 20


class VqosFilter(filters.BaseHostFilter):
    """Hosts that can keep the promise of a flavor.

    Says in one line per refused host what was asked and what the host has:
    at level info of the first hosts of a request, at level debug of the
    others. A server without units costs one look into the stats of each host,
    or none at all with ``[vqos] servers_without_units = allow``.

    Not run on rebuild: there the server stays on its host, and its flavor as
    it is. Whether the host could take in another one is not the question.
    """

    RUN_ON_REBUILD = False

    def __init__(self):
        vqos_conf.register_opts(CONF)
        # Of requests for several servers that met hosts of unlike pCPUs: by
        # host, what its classes have left after what the request itself took.
        self._classes = weakref.WeakKeyDictionary()

    def run_filter_for_index(self, index):
        """Whether to run again for a later server of a request.

        All of them have one flavor, and units are Placement's to count: but
        not what is left of them in one class of pCPUs.
        """
        return index == 0 or bool(self._classes)

    def filter_all(self, filter_obj_list, spec_obj):
        """The hosts that pass; the flavor is parsed once for all of them.

        :param filter_obj_list: nova.scheduler.host_manager.HostState objects
        :param spec_obj: nova.objects.RequestSpec
        """
        if utils.request_is_rebuild(spec_obj):
            return filter_obj_list
        try:
            policy = requests.policy_of(spec_obj)
        except policies.PolicyError as error:
            LOG.info('Server %(server)s finds no host: %(error)s',
                     {'server': spec_obj.instance_uuid, 'error': error})
            return []
        if fitness.asks_for_nothing(policy):
            return self._without_units(filter_obj_list, spec_obj)
        taken = None
        if 'num_instances' in spec_obj and spec_obj.num_instances > 1:
            taken = _RoomTaken(policy, self._classes.get(spec_obj, {}))
        judge = fitness.Judge(
            policy, agent_max_age_s=CONF.vqos.agent_max_age_s,
            in_one_class=policy.units is not None
            and spec_obj.numa_topology is None,
            classes_of=taken and taken.classes_of)
        if policy.units is None:
            filter_obj_list = self._without_units(filter_obj_list, spec_obj)
        passed = []
        refusals = []
        for host_state in filter_obj_list:
            reason = judge.refusal(requests.stats_of(host_state), host_state)
            if reason:
                refusals.append((host_state, reason))
            else:
                passed.append(host_state)
        if taken and taken.classes:
            self._classes[spec_obj] = taken.classes
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
        passed = [host_state for host_state in host_states
                  if not fitness.sells_units(
                      requests.stats_of(host_state))]
        if len(passed) < len(host_states):
            _log_kept(host_states, spec_obj)
        return passed


class _RoomTaken:
    """What the servers of one request leave of classes of unlike pCPUs."""

    def __init__(self, policy, classes):
        """
        :param classes: by host, what is known of them already
        """
        self._policy = policy
        self.classes = classes

    def classes_of(self, text, host_state):
        """The classes of a host, less what the request itself took.

        :raises ValueError: when the text is not that of a stat
        :raises decimal.InvalidOperation: likewise
        """
        key = host_state.host, host_state.nodename
        classes = self.classes.get(key)
        if classes is None:
            classes = fitness.Classes(text, host_state.num_instances)
            self.classes[key] = classes
        classes.take_others(self._policy, host_state.num_instances)
        return classes


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


def _log_kept(host_states, spec_obj):
    """One line for all: servers without units are the common case."""
    hosts = [host_state.host for host_state in host_states
             if fitness.sells_units(requests.stats_of(host_state))]
    more = len(hosts) - _LINES_AT_INFO
    LOG.info('Server %(server)s asks for no CPU units, and these hosts are '
             'kept for servers that do ([vqos] servers_without_units): '
             '%(hosts)s%(more)s',
             {'server': spec_obj.instance_uuid,
              'hosts': ', '.join(hosts[:_LINES_AT_INFO]),
              'more': f' and {more} more' if more > 0 else ''})
