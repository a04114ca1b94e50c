# SPDX-License-Identifier: Apache-2.0
"""The request pre-filter: the traits that Placement is asked for.

Placement gives the scheduler at most ``[scheduler] max_placement_results``
hosts. Where :class:`nova_vqos.scheduler.filter.VqosFilter` would refuse all of
these, the hosts that fit never reach it. So the pre-filter has Placement leave
out by their traits hosts that the filter refuses by their stats, and no
others.
"""

import time

import nova.conf
from nova.scheduler import request_filter
from nova.scheduler.client import report
from oslo_log import log as logging

from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos.scheduler import fitness
from nova_vqos.scheduler import request

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Of Placement's API: a list of traits by their prefix, and a new trait.
_VERSION = '1.6'
# Placement lets an operator delete a trait that no host has.
_KNOWN_S = 300
# A Placement that does not answer fails each request.
_LOG_INTERVAL_S = 3600


def install():
    """Put a pre-filter into Nova's list of them, unless it has one.

    NOTE: Nova loads filters and weighers by their name, but has a fixed list
    of pre-filters. Without this list nothing is changed, and the filter alone
    decides.
    """
    if not is_supported():
        LOG.warning('This release of Nova has no list of request pre-filters: '
                    'servers may find no host where [scheduler] '
                    'max_placement_results hosts have no place for them')
        return
    filters = request_filter.ALL_REQUEST_FILTERS
    if not any(isinstance(one, Prefilter) for one in filters):
        filters.append(Prefilter())


def is_supported() -> bool:
    """Whether this Nova has a list of pre-filters, as 33 and 34 do."""
    return isinstance(
        getattr(request_filter, 'ALL_REQUEST_FILTERS', None), list)


class Prefilter:
    """Has Placement leave hosts out that the filter would refuse."""

    def __init__(self):
        self._known = _KnownTraits()
        self._failures = _Failures()

    def __call__(self, context, request_spec):
        """Add traits to a request, before Placement is asked.

        Never raises: without the traits the filter refuses those hosts.

        :returns: whether anything was added, as Nova's pre-filters do
        """
        if not CONF.vqos.placement_prefilter:
            return False
        try:
            return self._add(context, request_spec)
        except Exception as error:
            self._failures.add(error)
            return False

    def _add(self, context, request_spec):
        # Nova skips the filters then.
        if request_spec.force_hosts or request_spec.force_nodes:
            return False
        try:
            policy = request.policy_of(request_spec)
        except policies.PolicyError:
            # The filter refuses all hosts, and logs why.
            return False
        required = fitness.required_traits(policy)
        forbidden = fitness.forbidden_traits(
            policy, servers_without_units=CONF.vqos.servers_without_units)
        if not required and not forbidden:
            return False
        self._known.ensure(context, required | forbidden)
        # Of the root provider of a host, which has all traits of ours.
        request_spec.root_required.update(required)
        request_spec.root_forbidden.update(forbidden)
        # A server without units is the common case.
        LOG.log(logging.INFO if required else logging.DEBUG,
                'For server %(server)s Placement is asked for hosts with '
                'traits: %(traits)s',
                {'server': request_spec.instance_uuid,
                 'traits': ', '.join((*sorted(required), *(
                     f'not {trait}' for trait in sorted(forbidden))))})
        return True


class _KnownTraits:
    """Traits that Placement has: it refuses a query with any other."""

    def __init__(self):
        self._names = frozenset()
        self._until_s = 0.0

    def ensure(self, context, names):
        """Create those that Placement has not.

        :raises Exception: when Placement does not answer, or refuses
        """
        now_s = time.monotonic()
        if names <= self._names and now_s < self._until_s:
            return
        client = report.report_client_singleton()
        answer = client.get(
            f'/traits?name=startswith:{host_stats.TRAIT}', version=_VERSION,
            global_request_id=context.global_id)
        _check(answer)
        names |= host_stats.ASKED_TRAITS
        for name in sorted(names - set(answer.json()['traits'])):
            _check(client.put(f'/traits/{name}', None, version=_VERSION,
                              global_request_id=context.global_id))
        # NOTE: replaced last, since Nova 34 schedules in threads.
        self._until_s = now_s + _KNOWN_S
        self._names = frozenset(names)


def _check(answer):
    if answer.status_code >= 400:
        raise RuntimeError(f'Placement answers {answer.status_code} to '
                           f'{answer.url}')


class _Failures:
    """Logs failures at most once an hour, with their number."""

    def __init__(self):
        self._unlogged = 0
        self._logged_at_s = None

    def add(self, error):
        self._unlogged += 1
        now_s = time.monotonic()
        if (self._logged_at_s is not None
                and now_s - self._logged_at_s < _LOG_INTERVAL_S):
            return
        self._logged_at_s = now_s
        number, self._unlogged = self._unlogged, 0
        LOG.warning(
            'Placement could not be asked for hosts by their traits, in '
            '%(number)d requests since this was last logged: %(error)s. The '
            'filter alone decides. This is logged at most once in '
            '%(interval)d s',
            {'number': number, 'error': error, 'interval': _LOG_INTERVAL_S})
