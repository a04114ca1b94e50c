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
their compute node (:mod:`nova_vqos.host_report`).
"""

import datetime
from decimal import Decimal
from decimal import InvalidOperation
import weakref

import nova.conf
from nova.scheduler import filters
from nova.scheduler import utils
from oslo_log import log as logging

from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.conf import vqos as vqos_conf
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
        if policy is None or policy == policies.ServerPolicy(policy.vcpus):
            return self._without_units(filter_obj_list, spec_obj)
        classes = None
        if 'num_instances' in spec_obj and spec_obj.num_instances > 1:
            classes = self._classes.get(spec_obj, {})
        request = _Request(
            policy, CONF.vqos.agent_max_age_s, classes,
            in_one_class=policy.units is not None
            and spec_obj.numa_topology is None)
        if policy.units is None:
            filter_obj_list = self._without_units(filter_obj_list, spec_obj)
        passed = []
        refusals = []
        for host_state in filter_obj_list:
            reason = request.refusal(host_state)
            if reason:
                refusals.append((host_state, reason))
            else:
                passed.append(host_state)
        if classes:
            self._classes[spec_obj] = classes
        _log_refusals(refusals, request, spec_obj)
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
                  if not _sells_units(host_state)]
        if len(passed) < len(host_states):
            _log_kept(host_states, spec_obj)
        return passed


class _Request:
    """What a server asks of a host, made ready for many hosts."""

    def __init__(self, policy, agent_max_age_s, classes, *, in_one_class):
        """
        :param classes: by host, what is known of its classes, for a request
            for several servers; None: for one
        :param in_one_class: whether servers are kept in one class of pCPUs,
            not where Nova finds them pCPUs by their NUMA topology
        """
        self._policy = policy
        self._classes = classes
        self._in_one_class = in_one_class
        self.asked = _describe(policy)
        self._oldest_sign = None
        if agent_max_age_s:
            now = datetime.datetime.now(datetime.UTC)
            self._oldest_sign = now - datetime.timedelta(
                seconds=agent_max_age_s)

    def refusal(self, host_state):
        """Why a host is refused, '' if it is not."""
        policy = self._policy
        stats = requests.stats_of(host_state)
        if policy.units is not None:
            reason = (self._too_slow(stats, host_state)
                      or self._agent_gone(stats))
            if reason:
                return reason
        return (_not_offered(stats, 'vqos_quantum_classes',
                             policies.QUANTUM_CLASS_KEY,
                             policy.quantum_class)
                or _not_offered(stats, 'vqos_dd_billing',
                                policies.DD_BILLING_KEY, policy.dd_billing))

    def _too_slow(self, stats, host_state):
        profile = stats.get('vqos_profile')
        if profile != 'valid':
            return (f'it takes no new servers with units: {profile}'
                    if profile else 'it has no CPU units')
        policy = self._policy
        try:
            if self._in_one_class and stats.get('vqos_classes'):
                return self._no_class(stats['vqos_classes'], host_state)
            # NOTE: exact, so that a pCPU of 60 CU takes a vCPU of 60 CU.
            slowest_cu = Decimal(stats['vqos_slowest_cu'])
            least_cu = Decimal(stats['vqos_least_cu'])
            if policy.units > slowest_cu * policy.vcpus:
                return (f'its slowest pCPU has {slowest_cu} CU, less than '
                        'what each vCPU needs')
            if policy.units < least_cu * policy.vcpus:
                return f'it can give a vCPU no less than {least_cu} CU'
        except (KeyError, ValueError, InvalidOperation):
            return 'its stats do not say how fast it is'
        return ''

    def _no_class(self, text, host_state):
        if self._classes is None:
            return _Classes(text).refusal(self._policy)
        key = host_state.host, host_state.nodename
        classes = self._classes.get(key)
        if classes is None:
            classes = _Classes(text, host_state.num_instances)
            self._classes[key] = classes
        classes.take_others(self._policy, host_state.num_instances)
        return classes.refusal(self._policy)

    def _agent_gone(self, stats):
        if self._oldest_sign is None:
            return ''
        seen_at = stats.get('vqos_agent_seen_at')
        if not seen_at:
            return 'its agent was never seen'
        try:
            if datetime.datetime.fromisoformat(seen_at) >= self._oldest_sign:
                return ''
        except (TypeError, ValueError):
            return f'its agent was last seen at {seen_at!r}, which is no time'
        return (f'its agent was last seen at {seen_at}, longer than '
                f'{CONF.vqos.agent_max_age_s} s ago')


class _Classes:
    """The classes of a host's unlike pCPUs, as one request sees them."""

    def __init__(self, text, num_instances=0):
        """
        :param text: of HostReport.stats()
        :param num_instances: that the host has by now
        :raises ValueError: when it is something else
        """
        self._classes = [
            [speed_cu, int(room_cu), least_cu] for speed_cu, room_cu, least_cu
            in [one.split(':') for one in text.split(' ')]]
        self._num_instances = num_instances

    def take_others(self, policy, num_instances):
        """Take the room of the request's servers that the host got since.

        :param num_instances: that the host has by now
        :raises decimal.InvalidOperation: when a number is none
        """
        while self._num_instances < num_instances:
            self._num_instances += 1
            taken = self._fitting(policy)
            if taken is not None:
                taken[1] -= policy.units

    def refusal(self, policy):
        """Why a server is refused, '' if it is not.

        :raises decimal.InvalidOperation: when a number is none
        """
        if self._fitting(policy) is not None:
            return ''
        has = ', '.join(
            f'{room_cu} CU left on pCPUs of {speed_cu} CU'
            for speed_cu, room_cu, _least_cu in self._classes)
        return f'no class of its pCPUs is fast enough and has room: {has}'

    def _fitting(self, policy):
        """The class that the driver would choose: they come slowest first."""
        for one in self._classes:
            speed_cu, room_cu, least_cu = one
            if (policy.units <= room_cu
                    and policy.units <= Decimal(speed_cu) * policy.vcpus
                    and policy.units >= Decimal(least_cu) * policy.vcpus):
                return one
        return None


def _sells_units(host_state):
    return requests.stats_of(host_state).get('vqos_sells_units') == 'True'


def _not_offered(stats, stat, key, wanted):
    offered = stats.get(stat, '')
    if wanted == policies.CHOICES[key][0] or wanted in offered.split(','):
        return ''
    return f'it offers {key} {offered or "nothing"}'


def _describe(policy):
    asked = [f'{key} {value}' for key, value in (
        (policies.QUANTUM_CLASS_KEY, policy.quantum_class),
        (policies.DD_BILLING_KEY, policy.dd_billing))
        if value != policies.CHOICES[key][0]]
    if policy.units is not None:
        cu = units.cu_per_vcpu(policy.units, policy.vcpus)
        asked.insert(0, f'{policy.units} CU on {policy.vcpus} vCPUs, '
                     f'{units.format_cu(cu)} CU each')
    return ', '.join(asked)


def _log_refusals(refusals, request, spec_obj):
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
                 'asked': request.asked, 'reason': reason})


def _log_kept(host_states, spec_obj):
    """One line for all: servers without units are the common case."""
    hosts = [host_state.host for host_state in host_states
             if _sells_units(host_state)]
    more = len(hosts) - _LINES_AT_INFO
    LOG.info('Server %(server)s asks for no CPU units, and these hosts are '
             'kept for servers that do ([vqos] servers_without_units): '
             '%(hosts)s%(more)s',
             {'server': spec_obj.instance_uuid,
              'hosts': ', '.join(hosts[:_LINES_AT_INFO]),
              'more': f' and {more} more' if more > 0 else ''})
