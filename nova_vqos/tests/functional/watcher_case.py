# SPDX-License-Identifier: Apache-2.0
"""A real Watcher beside the cloud in one process.

Its API, decision engine, applier and database are those of its own functional
tests. There Nova and Placement are emulated: here they are real.

Both Nova and Watcher fit into one environment, but not quite into one process:

- Nova 34 on threads forbids the import of eventlet, and Watcher 17 imports it
  (watcher/common/utils.py) without using it. That ban is lifted, and that of
  nova-vqos-manage.
- Both register options with oslo.config's CONF, among them ``host`` twice.
  Watcher gets a CONF of its own.
"""

import contextlib
import sys
import types

import fixtures
from openstack.placement.v1 import _proxy as placement
from oslo_config import cfg
from oslo_messaging import conffixture

from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.functional import manage_case

# tools/test.sh watcher installs it beside Nova.
requirement.need_modules('watcher')


@contextlib.contextmanager
def conf_of_watcher():
    """What is imported meanwhile has Watcher's options."""
    novas, cfg.CONF = cfg.CONF, cfg.ConfigOpts()
    sys.meta_path[:] = [one for one in sys.meta_path
                        if type(one).__name__ != 'PoisonEventletImport']
    if sys.modules.get('eventlet', True) is None:
        del sys.modules['eventlet']
    try:
        yield cfg.CONF
    finally:
        watchers = types.SimpleNamespace(**vars(cfg))
        cfg.CONF = novas
        for name, module in list(sys.modules.items()):
            if name.startswith('watcher.') and (
                    getattr(module, 'cfg', None) is cfg):
                module.cfg = watchers


with conf_of_watcher() as CONF:
    from watcher.applier.actions import migration  # noqa: F401
    import watcher.applier.workflow_engine.default  # noqa: F401
    from watcher.common import rpc
    from watcher.common import service
    from watcher.decision_engine.goal import goals  # noqa: F401
    from watcher.decision_engine.loading import default as loading
    from watcher.decision_engine.model.collector import nova as collector
    from watcher.decision_engine.planner import weight  # noqa: F401
    from watcher.decision_engine.strategy import strategies  # noqa: F401
    from watcher.tests.functional import base
    from watcher.tests.functional.api import client
    from watcher.tests.local_fixtures import api

    from nova_vqos.watcher import strategy


class Bus(fixtures.Fixture):
    """Watcher's bus in memory.

    Watcher's own fixture drops all messages at the end, also Nova's.
    """

    def _setUp(self):
        self.useFixture(conffixture.ConfFixture(CONF, transport_url='fake:/'))
        rpc.init(CONF)
        self.addCleanup(rpc.cleanup)


class WatcherTestCase(manage_case.ManageTestCase):
    """Starts Watcher once :meth:`start_watcher` is called."""

    def start_watcher(self):
        """Start its API, decision engine and applier."""
        case = self

        class RealCloud(fixtures.Fixture):
            """In place of the emulated Nova and Placement."""

            def __init__(self, topology):
                super().__init__()

            def _setUp(self):
                self.useFixture(fixtures.MonkeyPatch(
                    'watcher.common.clients.get_sdk_connection', self.connect))

            def connect(self, *_arguments, **_options):
                # NOTE: openstacksdk finds no version of Placement's fixture.
                found = case.cloud()
                proxy = found.config.get_session_client(
                    'placement', constructor=placement.Proxy)
                proxy._connection = found
                found._proxies['placement'] = proxy
                return found

        # Nova's fixture has the log.
        for name, fixture in (
                ('NovaPlacementFixture', RealCloud),
                ('rpc_fixture.RPCFixture', Bus),
                ('watcher_fixtures.StandardLogging', fixtures.Fixture)):
            self.useFixture(fixtures.MonkeyPatch(
                f'watcher.tests.functional.base.{name}', fixture))
        strategy._connections.cache_clear()
        self.useFixture(base.WatcherEnvironment(
            cast_as_call=False, compute_topology=()))
        # A real migration takes longer than an emulated one.
        CONF.set_override('migration_max_retries', 600, 'nova')
        # Only then it has the option.
        loading.DefaultStrategyLoader().load(NAME)
        CONF.set_override('nova_vqos_config_file', str(self.config),
                          f'watcher_strategies.{NAME}')
        self.watcher = client.WatcherTestClient(
            self.useFixture(api.APIFixture()).base_url, roles=['admin'])

    def audit(self, **parameters):
        """Have a plan made.

        :returns: UUID of the action plan, and its moves: the UUID of a server,
            where from, and where to
        """
        self.forget_model()
        audit = self._watcher('post', '/audits', {
            'audit_type': 'ONESHOT', 'goal': 'workload_balancing',
            'strategy': NAME, 'parameters': parameters})
        self.wait_for_state('audits', audit, 'SUCCEEDED')
        (plan,) = self._watcher(
            'get', f'/action_plans?audit_uuid={audit["uuid"]}')['action_plans']
        found = []
        for one in self._watcher(
                'get', f'/actions?action_plan_uuid={plan["uuid"]}')['actions']:
            action = self._watcher('get', f'/actions/{one["uuid"]}')
            self.assertEqual('migrate', action['action_type'])
            given = action['input_parameters']
            self.assertEqual('live', given['migration_type'])
            found.append((given['resource_id'], given['source_node'],
                          given['destination_node']))
        return plan['uuid'], found

    def carry_out(self, plan):
        """Have Watcher do what it recommends."""
        self._watcher('patch', f'/action_plans/{plan}', [
            {'op': 'replace', 'path': '/state', 'value': 'PENDING'}])
        self.wait_for_state('action_plans', {'uuid': plan}, 'SUCCEEDED')

    def wait_for_state(self, kind, one, state):
        path = f'/{kind}/{one["uuid"]}'
        self.wait_for(
            lambda: self._watcher('get', path)['state'] in (
                state, 'FAILED', 'CANCELLED'),
            lambda: f'the end of {path}')
        self.assertEqual(state, self._watcher('get', path)['state'],
                         self.log()[-4000:])

    def forget_model(self):
        """As after Watcher's period: it reads the cloud again."""
        found = service.Singleton._instances.get(
            collector.NovaClusterDataModelCollector)
        if found is not None:
            found._cluster_data_model = None

    def _watcher(self, method, path, *body):
        answer = getattr(self.watcher, method)(path, *body)
        self.assertIn(answer.status_code, (200, 201), answer.text)
        return answer.json()


NAME = strategy.UnitBalance.get_name()
