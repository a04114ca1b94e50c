# SPDX-License-Identifier: Apache-2.0
"""Servers without units on a host that sells units."""

from nova.compute import provider_tree
from oslo_utils import uuidutils

from nova_vqos import compute_state
from nova_vqos import domain_xml
from nova_vqos.tests.fixtures import driver

NODE = driver.NODE
NS = 'http://openstack.org/xmlns/libvirt/nova/1.1'

XML = """
<domain type='kvm'><name>vm</name>
 <metadata>%(metadata)s</metadata>
 <vcpu%(cpuset)s>%(vcpus)s</vcpu>%(more)s</domain>"""

NOVA = """<n:instance xmlns:n='%s'><n:flavor name='f'><n:extraSpecs>
 %s</n:extraSpecs></n:flavor></n:instance>"""
UNITS = """<n:extraSpec name='resources:CUSTOM_VQOS_CPU_UNIT'
 >%s</n:extraSpec>"""


class FakeGuest:
    """A domain that is there, be it stopped."""

    def __init__(self, vcpus=1, *, cpuset='', more='', units=None,
                 metadata=True):
        self.uuid = uuidutils.generate_uuid()
        specs = '' if units is None else UNITS % units
        self.xml = XML % {
            'vcpus': vcpus, 'more': more,
            'cpuset': f" cpuset='{cpuset}'" if cpuset else '',
            'metadata': NOVA % (NS, specs) if metadata else ''}

    def get_xml_desc(self):
        return self.xml


def quota(quota_us, period_us=None):
    period = '' if period_us is None else f'<period>{period_us}</period>'
    return f'<cputune>{period}<quota>{quota_us}</quota></cputune>'


def pins(*pcpus):
    return '<cputune>%s</cputune>' % ''.join(
        f"<vcpupin vcpu='{vcpu}' cpuset='{pcpu}'/>"
        for vcpu, pcpu in enumerate(pcpus))


class StockServersTestCase(driver.DriverTestCase):
    """4 pCPUs of 100 CU."""

    def setUp(self):
        super().setUp()
        self.stub_driver('_get_vcpu_available', lambda this: set(range(4)))
        self.files.calibrate({'0-3': 1.0})
        self.guests = []
        self.only_running = set()
        self.stub_out('nova.virt.libvirt.host.Host.list_guests', self._list)
        self.stub_driver('get_available_resource',
                         lambda this, nodename: {'stats': {}})
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def _list(self, host, only_running=True):
        self.only_running.add(only_running)
        return list(self.guests)

    def has(self, *args, **kwargs):
        self.guests.append(FakeGuest(*args, **kwargs))

    def reserved(self):
        self.driver.update_provider_tree(self.tree, NODE)
        inventory = self.tree.data(NODE).inventory[driver.CLASS]
        self.assertEqual(400, inventory['total'])
        return inventory['reserved']

    def test_each_vcpu_takes_a_whole_pcpu(self):
        self.assertEqual(0, self.reserved())
        self.has(vcpus=1)
        self.has(vcpus=2)
        self.assertEqual(300, self.reserved())
        # Those that are stopped count as well: they claim VCPU.
        self.assertEqual({False}, self.only_running)
        self.flags(reserved_cu=20, group='vqos')
        self.assertEqual(320, self.reserved())

    def test_when_they_are_gone_their_part_is_sold(self):
        self.has(vcpus=2)
        self.assertEqual(200, self.reserved())
        self.guests.clear()
        self.assertEqual(0, self.reserved())

    def test_no_more_than_there_is(self):
        self.has(vcpus=12)
        self.assertEqual(400, self.reserved())
        self.has(vcpus=12)
        self.assertEqual(400, self.reserved())

    def test_those_with_units_are_not_counted_twice(self):
        self.has(vcpus=2, units=150)
        # They were sold: this one is too, though its flavor is invalid.
        self.has(vcpus=2, units='many')
        self.assertEqual(0, self.reserved())

    def test_domains_of_others_are_not_novas(self):
        self.has(vcpus=2, metadata=False)
        self.assertEqual(0, self.reserved())

    def test_only_the_shared_pcpus_that_they_may_run_on(self):
        self.stub_driver('_get_vcpu_available', lambda this: {0, 1})
        self.has(vcpus=2, more=pins(2, 3))
        self.driver.update_provider_tree(self.tree, NODE)
        inventory = self.tree.data(NODE).inventory[driver.CLASS]
        self.assertEqual((200, 0), (inventory['total'],
                                    inventory['reserved']))
        self.has(vcpus=3, cpuset='1-3')
        self.driver.update_provider_tree(self.tree, NODE)
        inventory = self.tree.data(NODE).inventory[driver.CLASS]
        self.assertEqual(100, inventory['reserved'])

    def test_pcpus_that_were_not_measured(self):
        """Servers that return start all the same."""
        self.stub_driver('_get_vcpu_available', lambda this: set(range(8)))
        self.has(vcpus=8)
        report = self.driver._vqos_report()
        self.assertFalse(report.valid)
        self.assertEqual((1, 400), self.driver._vqos_core_types.usage(
            report).stock_load)

    def test_the_part_that_a_quota_allows(self):
        self.has(vcpus=2, more=quota(20_000, 40_000))
        self.assertEqual(100, self.reserved())
        self.has(vcpus=1, more=quota(25_000))
        self.assertEqual(125, self.reserved())
        self.has(vcpus=1, more=quota(-1))
        self.assertEqual(225, self.reserved())
        self.has(vcpus=1, more=quota(90_000, 30_000))
        self.assertEqual(325, self.reserved())

    def test_the_fastest_pcpus_of_unlike_ones(self):
        self.files.calibrate({'0-1': 1.5, '2-3': 0.5})
        self.has(vcpus=1)
        self.assertEqual(150, self.reserved())
        # Of both core types in proportion, each rounded down.
        self.assertEqual('249', self.stats()['vqos_room_cu'])
        self.has(vcpus=3)
        self.assertEqual(400, self.reserved())

    def stats(self):
        return self.driver.get_available_resource(NODE)['stats']

    def test_stats_have_the_room_left(self):
        self.has(vcpus=2)
        self.has(vcpus=1, units=50)
        self.reserved()
        self.assertEqual('150', self.stats()['vqos_room_cu'])

    def test_an_operator_may_count_them(self):
        self.flags(servers_without_units='allow', reserved_cu=30,
                   group='vqos')
        self.has(vcpus=2)
        self.assertEqual(30, self.reserved())
        self.assertEqual('370', self.stats()['vqos_room_cu'])

    def test_a_lost_profile_keeps_the_host_closed(self):
        self.has(vcpus=2)
        self.assertEqual(200, self.reserved())
        self.files.lose_profile()
        self.assertEqual(400, self.reserved())

    def test_an_xml_is_parsed_once(self):
        parsed = []

        def read(xml, read=domain_xml.read):
            parsed.append(xml)
            return read(xml)
        self.stub_out('nova_vqos.domain_xml.read', read)
        self.has(vcpus=2)
        self.has(vcpus=1, units=10)
        for _ in range(3):
            self.reserved()
            self.stats()
        self.assertEqual(2, len(parsed))
        self.guests[0].xml = self.guests[0].xml.replace('>2<', '>3<')
        self.assertEqual(300, self.reserved())
        self.assertEqual(3, len(parsed))

    def test_a_guest_that_is_made_anew_counts_meanwhile(self):
        self.has(vcpus=2)
        guest, = self.guests
        tracker = self.driver._vqos_core_types
        tracker.record_last(guest.uuid, guest)
        self.guests.clear()
        self.assertEqual(200, self.reserved())
        self.guests.append(guest)
        self.assertEqual(200, self.reserved())
        tracker.forget_last(guest.uuid)
        self.assertEqual(200, self.reserved())
        self.guests.clear()
        self.assertEqual(0, self.reserved())

    def test_a_server_that_gets_units_frees_its_own_part(self):
        self.files.calibrate({'0-1': 1.5, '2-3': 0.5})
        self.has(vcpus=4)
        guest, = self.guests
        report = self.driver._vqos_report()
        used = self.driver._vqos_core_types._used(report, but=guest.uuid)
        self.assertEqual(0, used.reserved_cu)

    def state(self):
        state = compute_state.load(self.files.compute_state_path)
        return state.stock_servers, state.stock_cu

    def test_others_learn_of_them(self):
        self.stats()
        self.assertEqual((0, 0), self.state())
        self.has(vcpus=2)
        self.reserved()
        self.assertEqual((1, 200), self.state())
        self.assertIn('Servers without CPU units on this host: 1',
                      self.stdlog.logger.output)
        self.files.lose_profile()
        self.reserved()
        self.assertEqual((1, None), self.state())
