# SPDX-License-Identifier: Apache-2.0
"""What the request pre-filter adds to a request, and when it adds nothing."""

import logging
import types

import fixtures
from nova.scheduler import request_filter
from nova.tests.unit import fake_flavor

from nova import context
from nova import objects
from nova_vqos import policy
from nova_vqos.scheduler import filter as vqos_filter
from nova_vqos.scheduler import prefilter
from nova_vqos.tests.fixtures import nova_case

objects.register_all()

SELLS_UNITS = 'CUSTOM_VQOS_SELLS_UNITS'


class FakePlacement:
    """The part of Nova's client of Placement that is about traits."""

    def __init__(self):
        self.traits = set()
        self.requests = 0
        self.status_code = 200

    def _answer(self, url):
        self.requests += 1
        return types.SimpleNamespace(
            status_code=self.status_code, url=url,
            json=lambda: {'traits': sorted(self.traits)})

    def get(self, url, version, global_request_id):
        return self._answer(url)

    def put(self, url, data, version, global_request_id):
        if self.status_code < 400:
            self.traits.add(url.removeprefix('/traits/'))
        return self._answer(url)


class PrefilterTestCase(nova_case.NovaTestCase):

    def setUp(self):
        super().setUp()
        self.now_s = 1000.0
        self.placement = FakePlacement()
        self.stub_out('nova.scheduler.client.report.report_client_singleton',
                      lambda: self.placement)
        self.stub_out('time.monotonic', lambda: self.now_s)
        self.prefilter = prefilter.Prefilter()
        self.logger = self.useFixture(fixtures.FakeLogger(
            'nova_vqos.scheduler.prefilter', level=logging.INFO))

    def ask(self, extra_specs=None, *, vcpus=1, **fields):
        """:returns: whether anything was added, what is required, forbidden"""
        flavor = fake_flavor.fake_flavor_obj(
            None, vcpus=vcpus, extra_specs=extra_specs or {},
            expected_attrs=['extra_specs'])
        spec = objects.RequestSpec(**{
            'flavor': flavor, 'numa_topology': None, 'force_hosts': None,
            'force_nodes': None,
            'instance_uuid': '8d2b5d4f-0000-4000-8000-000000000001',
            **fields})
        added = self.prefilter(context.get_admin_context(), spec)
        return added, spec.root_required, spec.root_forbidden

    def test_servers_without_units(self):
        self.assertEqual((True, set(), {SELLS_UNITS}), self.ask())
        self.assertEqual('', self.logger.output)
        self.flags(servers_without_units='allow', group='vqos')
        self.assertEqual((False, set(), set()), self.ask())

    def test_servers_with_units(self):
        required = {'CUSTOM_VQOS', 'CUSTOM_VQOS_SPEED_60',
                    'CUSTOM_VQOS_QUANTUM_IO'}
        self.assertEqual((True, required, set()), self.ask({
            policy.UNITS_KEY: '125', policy.QUANTUM_CLASS_KEY: 'io'},
            vcpus=2))
        for name in required:
            self.assertIn(name, self.logger.output)

    def test_requests_that_the_filter_does_not_decide(self):
        for fields in ({'force_hosts': ['compute1']},
                       {'force_nodes': ['compute1']}):
            self.assertEqual((False, set(), set()), self.ask(**fields))
        # It refuses all hosts, with the reason.
        self.assertEqual((False, set(), set()),
                         self.ask({policy.UNITS_KEY: 'many'}))
        self.flags(placement_prefilter=False, group='vqos')
        self.assertEqual((False, set(), set()), self.ask())
        self.assertEqual(0, self.placement.requests)

    def test_traits_exist_before_they_are_asked_for(self):
        self.ask()
        self.assertIn(SELLS_UNITS, self.placement.traits)
        self.assertIn('CUSTOM_VQOS_SPEED_1000', self.placement.traits)
        before = self.placement.requests
        self.ask({policy.UNITS_KEY: '60'})
        self.assertEqual(before, self.placement.requests)
        # An operator may delete them.
        self.placement.traits.clear()
        self.now_s += 301
        self.ask()
        self.assertIn(SELLS_UNITS, self.placement.traits)

    def test_a_placement_that_fails(self):
        self.placement.status_code = 503
        for _ in range(3):
            self.assertEqual((False, set(), set()), self.ask())
        self.assertEqual(1, len(self.logger.output.splitlines()))
        self.now_s += 3601
        self.ask()
        line = self.logger.output.splitlines()[1]
        self.assertIn('503', line)
        self.assertIn(' 3 requests', line)
        # It answers again.
        self.placement.status_code = 200
        self.assertTrue(self.ask()[0])

    def test_no_client_of_placement(self):
        def fail():
            raise ConnectionError('no endpoint')
        self.stub_out('nova.scheduler.client.report.report_client_singleton',
                      fail)
        self.assertEqual((False, set(), set()), self.ask())
        self.assertIn('no endpoint', self.logger.output)


class InstallTestCase(nova_case.NovaTestCase):

    def setUp(self):
        super().setUp()
        self.filters = [
            one for one in request_filter.ALL_REQUEST_FILTERS
            if not isinstance(one, prefilter.Prefilter)]
        self.stub_out('nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
                      self.filters)

    def test_once_and_last(self):
        stock = list(self.filters)
        for _ in range(2):
            vqos_filter.VqosFilter()
        self.assertEqual(stock, self.filters[:-1])
        self.assertIsInstance(self.filters[-1], prefilter.Prefilter)
        self.assertIs(True, prefilter.is_supported())

    def test_a_nova_of_another_kind(self):
        logger = self.useFixture(fixtures.FakeLogger(
            'nova_vqos.scheduler.prefilter', level=logging.INFO))
        self.stub_out('nova.scheduler.request_filter.ALL_REQUEST_FILTERS',
                      tuple(self.filters))
        vqos_filter.VqosFilter()
        self.assertIs(False, prefilter.is_supported())
        self.assertIn('max_placement_results', logger.output)
