# SPDX-License-Identifier: Apache-2.0
"""What filter and weighers read: a request's flavor, and a host's stats."""

import math
import time
import typing as ty

from oslo_log import log as logging

from nova_vqos import host_stats
from nova_vqos import policy

LOG = logging.getLogger(__name__)

# A host may report other invalid stats as often as it likes.
_LOG_INTERVAL_S = 3600


class _Known(ty.NamedTuple):
    """What a host last reported.

    :ivar stats: None: invalid
    :ivar logged_at_s: when that was last logged
    """

    texts: tuple
    stats: host_stats.HostStats | None
    logged_at_s: float


# By host and node. A host reports each minute, and in a cloud where time
# matters it is asked for far more often: stats are decoded when they change.
# NOTE: each entry is replaced as a whole, since Nova 34 schedules in threads.
_known = {}


def policy_of(spec_obj):
    """The policy of the servers of a request; None: stock Nova's business.

    :param spec_obj: nova.objects.RequestSpec
    :raises nova_vqos.policy.PolicyError: when flavor, or flavor and image
        together, are invalid
    """
    flavor = spec_obj.flavor
    if 'extra_specs' not in flavor or not flavor.extra_specs:
        return None
    return policy.parse(flavor.extra_specs, flavor.vcpus,
                          numa_topology=spec_obj.numa_topology)


def raw_stats_of(host_state):
    """The stats of a host, as texts.

    NOTE: Nova sets them when it reads the compute node, which it leaves for
    later while the node has not yet said what it has.
    """
    return getattr(host_state, 'stats', {})


def stats_of(host_state):
    """The decoded stats of a host; None: they are invalid.

    That they are is logged once an hour for each host. Without the room that
    servers leave where some have left since it was counted, up to a minute
    ago: Nova's own count of them is of now. The driver knows better, and has
    the last word.
    """
    key = host_state.host, host_state.nodename
    texts = host_stats.texts_of(raw_stats_of(host_state))
    known = _known.get(key)
    if known is None or known.texts != texts:
        known = _known[key] = _decode(
            key, texts, -math.inf if known is None else known.logged_at_s)
    stats = known.stats
    if (stats is not None and stats.servers is not None
            and host_state.num_instances < stats.servers):
        return stats.without_room()
    return stats


def _decode(key, texts, logged_at_s):
    try:
        return _Known(texts, host_stats.decode(texts), logged_at_s)
    except host_stats.StatInvalid as error:
        now_s = time.monotonic()
        if now_s - logged_at_s >= _LOG_INTERVAL_S:
            logged_at_s = now_s
            LOG.warning(
                'Host %(host)s reports invalid stats, and gets no new servers '
                'with units, a quantum class or billing: %(error)s. This is '
                'logged at most once in %(interval)d s',
                {'host': key[0], 'error': error, 'interval': _LOG_INTERVAL_S})
        return _Known(texts, None, logged_at_s)
