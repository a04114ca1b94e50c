# SPDX-License-Identifier: Apache-2.0
"""The strategy ``vqos_unit_balance`` of Watcher's decision engine.

Imported by Watcher alone, through its entry point.
"""

import functools

from oslo_config import cfg
from oslo_log import log as logging
from watcher.common import nova_helper
from watcher.decision_engine.model import element
from watcher.decision_engine.strategy.strategies import base

from nova_vqos.agent import rpcapi
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import connections
from nova_vqos.conf import default_path
from nova_vqos.watcher import balance
from nova_vqos.watcher import cluster
from nova_vqos.watcher import proposals

LOG = logging.getLogger(__name__)


class UnitBalance(base.BaseStrategy):
    """Levels CPU units over hosts, and frees those that are stranded.

    Moves servers with units, live, from hosts that have sold a large part of
    their units to hosts that have sold less, and where memory is left without
    units, or units without memory, so that both can be sold together. It
    proposes only what the scheduler's filter and the driver of nova_vqos let
    pass, as far as their hosts say it.
    """

    @classmethod
    def get_name(cls):
        return 'vqos_unit_balance'

    @classmethod
    def get_display_name(cls):
        return cls.get_translatable_display_name()

    @classmethod
    def get_translatable_display_name(cls):
        return 'Balance of CPU units (nova_vqos)'

    @classmethod
    def get_goal_name(cls):
        return 'workload_balancing'

    @classmethod
    def get_config_opts(cls):
        return [cfg.StrOpt(
            'nova_vqos_config_file', default=default_path.CONFIG,
            help='The configuration file of nova-vqos-manage on this machine: '
                 'transport_url of the message bus of nova-compute, over '
                 'which the agents of hosts are asked, or [vqos_manage] cells '
                 'where there are several; and [vqos] agent_max_age_s and '
                 'servers_without_units as in nova.conf of the scheduler. '
                 'Without the file audits fail. Read once.')]

    @classmethod
    def get_schema(cls):
        return {'properties': {
            'spread_threshold': {
                'description': 'Servers are moved while the part of its units '
                'that each host has sold has a standard deviation above this, '
                'in percent of a host. 100: units are not levelled.',
                'type': 'number', 'minimum': 0, 'maximum': 100,
                'default': 10},
            'stranded_threshold': {
                'description': 'Servers are moved while more than this part '
                'of all units, in percent, cannot be sold since memory is '
                'left on other hosts than units. 100: that does not matter.',
                'type': 'number', 'minimum': 0, 'maximum': 100,
                'default': 5},
            'max_moves': {
                'description': 'Live migrations of one action plan, at most.',
                'type': 'integer', 'minimum': 1, 'maximum': 100,
                'default': 10},
        }}

    def pre_execute(self):
        self._pre_execute()

    def do_execute(self, audit=None):
        """Add the moves of a plan to the solution.

        :raises nova_vqos.cmd.manage.errors.ManageError: when Nova, Placement,
            or the message bus cannot be asked
        """
        nodes = self._nodes()
        bus = _connections(self.config.nova_vqos_config_file)
        # NOTE: with Watcher's credentials, for Placement as well.
        cloud = clouds.Cloud(nova_helper.NovaHelper().connection)
        computes = [one for one in cloud.computes()
                    if one.host in nodes and one.provider
                    and not one.obstacles]
        found = cluster.read(cloud.placement, computes, self._placed(nodes))
        options = bus.options().vqos
        proposed = proposals.Proposals(
            cloud, computes, _ask(bus, [one.host for one in computes]),
            found.providers,
            agent_max_age_s=options.agent_max_age_s,
            servers_without_units=options.servers_without_units)
        self._plan = balance.plan(
            found.hosts, found.servers, self._goals(), proposed.accept)
        for server, destination in self._plan.moves:
            self.add_action_migrate(
                self.compute_model.get_instance_by_uuid(server.uuid), 'live',
                nodes[server.host], nodes[destination])
        for line in proposed.summary():
            LOG.info('%s', line)
        LOG.info('%(moves)d of %(servers)d servers with units on %(hosts)d '
                 'hosts are to be moved: spread from %(spread).1f to '
                 '%(spread_then).1f %%, stranded units from %(stranded).1f to '
                 '%(stranded_then).1f %%', {
                     'moves': len(self._plan.moves),
                     'servers': len(found.servers),
                     'hosts': len(found.hosts),
                     'spread': self._plan.before.spread * 100,
                     'spread_then': self._plan.after.spread * 100,
                     'stranded': self._plan.before.stranded * 100,
                     'stranded_then': self._plan.after.stranded * 100})
        self._servers = len(found.servers)

    def post_execute(self):
        self.solution.model = self.compute_model
        self.solution.set_efficacy_indicators(
            instance_migrations_count=len(self._plan.moves),
            instances_count=self._servers,
            standard_deviation_before_audit=self._plan.before.spread,
            standard_deviation_after_audit=self._plan.after.spread)

    def _goals(self):
        given = self.input_parameters
        return balance.Goals(given.spread_threshold / 100,
                             given.stranded_threshold / 100, given.max_moves)

    def _nodes(self):
        """The hosts of the audit that take servers, by name."""
        return {
            one.hostname: one
            for one in self.compute_model.get_all_compute_nodes().values()
            if one.state == element.ServiceState.ONLINE.value
            and one.status == element.ServiceState.ENABLED.value}

    def _placed(self, nodes):
        """See :func:`nova_vqos.watcher.cluster.read`.

        Servers that are locked, or that the audit excludes, stay.
        """
        return {
            one.uuid: (name, one.state == element.InstanceState.ACTIVE.value
                       and not one.locked and not one.watcher_exclude)
            for name, node in nodes.items()
            for one in self.compute_model.get_node_instances(node)}


@functools.cache
def _connections(config_file):
    """Connections of this process to the buses: they stay open."""
    def connect():
        raise NotImplementedError('Nova is asked as Watcher says')
    # NOTE: not the process's own options, which are Watcher's.
    return connections.Connections(
        cfg.ConfigOpts(), config_file=config_file, connect=connect,
        timeout_s=None, file_option='[watcher_strategies.vqos_unit_balance] '
        'nova_vqos_config_file')


def _ask(bus, hosts):
    """The answers of agents to get_host, by host."""
    if not hosts:
        return {}
    answers = bus.fleet().ask(bus.hosts(hosts), rpcapi.GET_HOST)
    return {one.host: one for one in answers}
