# SPDX-License-Identifier: Apache-2.0
"""What a host offers of CPU units: to Placement, its scheduler and its agent.

Each claim on the host has Nova ask for the inventory. So it is then, too, that
the host decides on the cold moves to it.
"""

import nova.conf
from oslo_log import log as logging

from nova_vqos import compute_state
from nova_vqos import host_stats
from nova_vqos.conf import vqos
from nova_vqos.virt import admission
from nova_vqos.virt import core_type_tracker
from nova_vqos.virt import inventory

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


class HostOffer:
    """The inventory, the traits and the stats of a host.

    :ivar sells_units: whether Placement has units of this host; None: not yet
        known
    """

    def __init__(self, report, tracker, moves, arrivals):
        """
        :param report: report() makes the
            :class:`nova_vqos.virt.host_state.HostReport` of now
        :param tracker: the CoreTypeTracker of the host
        :param moves: its ColdMoves
        :param arrivals: its Arrivals
        """
        self.sells_units = None
        self._report = report
        self._tracker = tracker
        self._moves = moves
        self._arrivals = arrivals
        # CU that the inventory reserves for kinds of work; None: not yet
        # known.
        self._work_cu = None
        # room.Sale of the last inventory that Nova was given; None: not yet,
        # or none.
        self._last_sale = None
        # By UUID, the hosts that servers came from, the latest last.
        self._sources = {}
        self._state_path = CONF.vqos.compute_state_path
        self._state_file = compute_state.Writer(self._state_path)

    def update_provider(self, provider_tree, nodename, last, guarantees):
        """Add inventory and traits to what stock Nova gave the host.

        Never raises: an exception would keep nova-compute from starting, and
        freeze the stats of one that runs.

        :param last: the inventory of units that it had before; None: none
        :param guarantees: whether it had the trait of guarantees before
        """
        sale, usage, work_cu = None, None, 0
        try:
            self._recall()
            report = self._report()
            self._follow_moves(nodename, report)
            usage = self._tracker.usage(report)
            work_cu = usage.work_cu
            given = {'last': last, 'last_work_cu': self._work_cu,
                     'guarantees': guarantees}
            mine = _cpu_units(report, usage, work_cu=work_cu, **given)
            if mine is not None:
                # The driver itself counts what servers take.
                sale = inventory.sale(_cpu_units(report, usage, **given))
            traits = report.traits(sold_units=mine is not None)
            if guarantees and report.valid and report.unsold_cu is None:
                # As the inventory does.
                traits.add(host_stats.TRAIT_GUARANTEE)
        except Exception:
            LOG.exception('The inventory of CPU units cannot be made: this '
                          'host accepts no new servers with units')
            work_cu = 0
            mine = None if last is None else inventory.closed(last)
            sale = None if mine is None else inventory.sale(mine)
            traits = host_stats.traits(host_stats.HostStats(
                sells_units=mine is not None), hook=False)
        inventory.merge(provider_tree, nodename, mine)
        inventory.set_traits(provider_tree, nodename, traits)
        self._last_sale, self._work_cu = sale, work_cu
        self.sells_units = mine is not None
        # NOTE: Nova calls this for each claim, and then the source of a move
        # asks this host's agent for the decision on it.
        self.stats(usage)

    def stats(self, usage=None):
        """Our stats, which the agent gets as well. Never raises.

        :param usage: what servers use now; None: it is read
        """
        try:
            self._recall()
            report = self._report()
            usage = usage or self._usage(report)
            stats = report.stats(usage.left, usage.servers)
            texts = host_stats.encode(stats._replace(
                sells_units=report.may_have_sold(bool(self.sells_units))))
            terms = ({} if report.profile is None else
                     {'tick_us': report.profile.tick_us,
                      **vqos.periods(CONF)._asdict()})
        except Exception as error:
            LOG.exception('The stats of CPU units cannot be made: this host '
                          'accepts no new servers with units')
            texts = host_stats.encode(host_stats.HostStats(
                profile=f'its stats cannot be made: {error}',
                sells_units=self.sells_units is not False))
            terms = {}
        self._state_file.write(
            texts, terms, self._tracker.last_stock_load, self._work_cu or 0,
            self._moves.reasons, self._arrivals.alarms(), self._sources)
        return texts

    def sale(self, report):
        """What this host sells; None: it has nothing to sell.

        :param report: :class:`nova_vqos.virt.host_state.HostReport` of now
        """
        if self._last_sale is not None:
            return self._last_sale
        sold = _cpu_units(report, self._tracker.usage(report))
        return None if sold is None else inventory.sale(sold)

    def record_sources(self, sources):
        """Have the agent ask one host for the account of a server, not all.

        :param sources: by UUID of servers that come, the host that they are on
        """
        for uuid, host in sources.items():
            self._sources.pop(uuid, None)
            self._sources[uuid] = host
        for uuid in list(self._sources)[:-compute_state.MOST_SOURCES]:
            self._sources.pop(uuid, None)

    def _recall(self):
        """What was reported before this start counts until the next report."""
        if self._work_cu is not None:
            return
        last = self._last_state()
        self._work_cu = 0 if last is None else last.work_cu
        if last is not None:
            self.sells_units = host_stats.sells_units(last.stats)

    def _last_state(self):
        """The last report before this start; None: it is not known."""
        try:
            return compute_state.load(self._state_path)
        except ValueError as error:
            LOG.warning('The last stats of this host cannot be read: %s',
                        error)
            return None

    def _usage(self, report):
        """What all servers use of this host, and what they leave.

        Where it is not known: of unlike pCPUs this raises, of others the
        scheduler's weighers alone read it, and nothing is left.
        """
        try:
            return self._tracker.usage(report)
        except Exception as error:
            if report.unlike_core_types:
                raise
            LOG.warning('CPU units that are left cannot be counted, and the '
                        'scheduler prefers other hosts: %s', error)
            return core_type_tracker.NO_USAGE

    def _follow_moves(self, nodename, report):
        """Decide on cold moves that were claimed on this host. Never raises.
        """
        def admit(candidate, is_resize):
            # NOTE: of another size on this host Placement has counted the
            # units, and not what they take; nor what others take that have
            # come since the last report.
            counted = (not is_resize or candidate.policy.mix is not None
                       or self._work_cu)
            admission.admit(
                candidate, report, self._tracker,
                sale=self.sale(report) if counted else None,
                periods=vqos.periods(CONF))
        try:
            self._moves.follow(nodename, report, admit)
            self.record_sources(self._moves.sources)
        except Exception:
            LOG.exception('It is not known which servers move to this host '
                          'cold: no decision on them can be asked for, and '
                          'those that it accepted before stay counted')


def _cpu_units(report, usage, last=None, **options):
    return inventory.cpu_units(
        report, last,
        reserved_cu=vqos.reserved_cu(CONF, report.agent.reserve_cu),
        allocation_ratio=CONF.vqos.allocation_ratio,
        stock_cu=usage.stock_load.cu or 0, **options)
