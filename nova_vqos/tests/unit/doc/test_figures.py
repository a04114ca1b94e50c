# SPDX-License-Identifier: Apache-2.0
"""The figures of the cookbook and of capacity planning, computed anew.

By the functions that caps and inventories are made by, of the flavors that
the cookbook prints, on the cloud that capacity planning invents.
"""

from fractions import Fraction
import math
import re
import typing as ty

import pytest

from nova_vqos import core_types
from nova_vqos import cputune
from nova_vqos import guarantee
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos import units
from nova_vqos.billing import costs
from nova_vqos.quantum import classes
from nova_vqos.tests.fixtures import doc_examples
from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout

COOKBOOK = 'doc/source/admin/cookbook.rst'
LAB_FLAVOR = 'pair'
CAPACITY = 'doc/source/admin/capacity.rst'
GUARANTEE = 'doc/source/admin/guarantee.rst'
TICK_US = 4000
# Of each pCPU, as Linux 6.18 reserves it for servers.
RESERVABLE_PART = Fraction(9, 10)


class Kind(ty.NamedTuple):
    """A kind of host of the cloud that capacity planning invents."""

    hosts: int
    pcpus: int
    coefficient: float
    reserved_cu: int

    @property
    def capacity_cu(self):
        return units.capacity_cu([self.coefficient] * self.pcpus)

    @property
    def for_sale_cu(self):
        return self.capacity_cu - self.reserved_cu

    def cap(self, flavor):
        """The cap of a flavor's servers; None: too slow for them."""
        period_us = units.DEFAULT_PERIOD_US
        try:
            if flavor.quantum_class == classes.CACHE:
                period_us = units.holding_period_us(
                    units.share(flavor.units, flavor.vcpus, self.coefficient),
                    cputune.DEFAULT_PERIODS.cache_slice_us, period_us,
                    cputune.DEFAULT_PERIODS.cache_longest_us)
            return units.cap(flavor.units, flavor.vcpus, self.coefficient,
                             tick_us=TICK_US, period_us=period_us)
        except units.HostTooSlow:
            return None

    def servers(self, flavor):
        """How many of a flavor's servers its units are enough for."""
        return self.for_sale_cu // flavor.units if self.cap(flavor) else 0


    def packed(self, *flavors):
        """An empty host with these servers, whose vCPUs have to pack."""
        host = core_types.CoreType(
            frozenset(range(self.pcpus)), self.coefficient,
            Fraction(self.capacity_cu))
        (left,) = core_types.with_servers(
            (host,), [core_types.Server(one.units, None, one.vcpus)
                      for one in flavors],
            reserved_cu=self.reserved_cu, exact=True)
        return left

    def packed_servers(self, flavor, *others):
        """How many of a flavor's servers pack beside others."""
        return next(count for count in range(self.for_sale_cu)
                    if not self.packed(*others, *[flavor] * count).takes(
                        flavor))


FLEET = {
    'old': Kind(10, 24, 0.6, 90),
    'mid': Kind(10, 32, 1.0, 200),
    'new': Kind(4, 64, 1.8, 520),
}

# Those that guarantee speed, with the pCPUs that the host keeps.
KEPT_PCPUS = {'mid': 2, 'new': 4}


class Partition:
    """The partition of a host that guarantees speed, and its free time."""

    def __init__(self, name):
        kind = FLEET[name]
        self.kind = kind._replace(pcpus=kind.pcpus - KEPT_PCPUS[name])
        self.pcpu_cu = units.pcpu_cu(kind.coefficient)
        self.free_pcpus = guarantee.sellable_pcpus(
            RESERVABLE_PART * self.kind.pcpus)
        self.unsold_cu = guarantee.unsold_cu(
            self.kind.capacity_cu, float(self.free_pcpus), self.pcpu_cu)
        #: As Placement counts it.
        self.left_cu = self.for_sale_cu = (
            self.kind.capacity_cu - self.unsold_cu)

    @property
    def free_cu(self):
        """As filter and driver count it."""
        return self.free_pcpus * self.pcpu_cu

    def cost_cu(self, flavor):
        """CU that are reserved for a server, its I/O included."""
        share = units.share(flavor.units, flavor.vcpus, self.kind.coefficient)
        return guarantee.cost_pcpus(share, flavor.vcpus) * self.pcpu_cu

    def fill(self, flavor, at_most=10_000):
        """Start servers of a flavor; how many there was room for."""
        for count in range(at_most):
            if flavor.units > self.left_cu or guarantee.refusal(
                    units.share(flavor.units, flavor.vcpus,
                                self.kind.coefficient),
                    flavor.vcpus, self.pcpu_cu, math.floor(self.free_cu)):
                return count
            self.left_cu -= flavor.units
            self.free_pcpus -= self.cost_cu(flavor) / self.pcpu_cu
        return at_most


def rows(page):
    """The lines of a page, blanks made one."""
    text = (project.TOP / page).read_text()
    return [' '.join(line.split()) for line in text.splitlines()]


def prose(page):
    return ' '.join((project.TOP / page).read_text().split())


@pytest.fixture(scope='module')
def flavors():
    """The flavors of the cookbook by name, but for the one of the lab."""
    made = doc_examples.flavors(COOKBOOK)
    return {name: policy.parse(specs, vcpus)
            for _where, name, vcpus, specs in made if name != LAB_FLAVOR}


def number(cu):
    """A number of CU as the tables print it."""
    return f'{float(cu):g}'


# 1. The cookbook.

def test_caps_and_servers_of_each_flavor(flavors):
    found = rows(COOKBOOK)
    for flavor in flavors.values():
        for name, kind in FLEET.items():
            cap = kind.cap(flavor)
            if cap is None:
                row = f'{name} too slow 0'
            elif flavor.cap == 'floor':
                share = units.share(flavor.units, flavor.vcpus,
                                    kind.coefficient)
                row = f'{name} {float(share):.1%} none {kind.servers(flavor)}'
            else:
                row = (f'{name} {float(cap.share):.1%} '
                       f'{cap.quota_us}/{cap.period_us} '
                       f'{kind.servers(flavor)}')
            assert row in found, (flavor, row)


def test_what_packets_cost_a_router():
    """By the calibration guide's table, on a pCPU of 100 CU."""
    found = ' '.join(rows('doc/source/admin/calibration.rst'))
    for row in ('bridge | rx | 64 | 1510 |', 'bridge | rx | 256 | 1572 |'):
        assert row in found
    packets_ns = costs.RequestCost(((64, 1510.0), (256, 1572.0))).total_ns(
        100_000, 100_000 * 200)
    packets_cu = float(packets_ns) * 1e-9 * units.CU_PER_REFERENCE_PCPU
    assert f'{packets_cu:.1f} CU' in prose(COOKBOOK)
    assert f'{packets_cu / 160:.0%}' == '10%'


# 2. Capacity planning.

def test_what_each_kind_of_host_has():
    found = rows(CAPACITY)
    for name, kind in FLEET.items():
        row = ' '.join(map(number, (
            kind.hosts, kind.pcpus, kind.coefficient, kind.capacity_cu,
            kind.reserved_cu, kind.for_sale_cu,
            kind.for_sale_cu * kind.hosts)))
        assert f'{name} {row}' in found
    total = sum(kind.for_sale_cu * kind.hosts for kind in FLEET.values())
    assert f'{number(total)} CU in all' in prose(CAPACITY)


def test_how_many_servers_of_each_flavor_fit(flavors):
    found = rows(CAPACITY)
    for name, flavor in flavors.items():
        each = [kind.servers(flavor) for kind in FLEET.values()]
        fleet = sum(servers * kind.hosts for servers, kind
                    in zip(each, FLEET.values(), strict=True))
        speed = units.format_cu(units.cu_per_vcpu(flavor.units, flavor.vcpus))
        row = ' '.join(map(str, (name, flavor.units, speed, *each, fleet)))
        assert row in found


def test_which_ratio_of_vcpus_lets_all_units_be_sold(flavors):
    found = rows(CAPACITY)
    for name in 'web', 'desktop', 'batch':
        flavor, kind = flavors[name], FLEET['new']
        by_units = kind.servers(flavor)
        by_vcpus = 4 * kind.pcpus // flavor.vcpus
        ratio = by_units * flavor.vcpus / kind.pcpus
        assert f'{name} {by_units} {by_vcpus} {ratio:.1f}' in found


def test_one_vcpu_for_each_pcpu(flavors):
    kind, web = FLEET['mid'], flavors['web']
    assert units.share(web.units, web.vcpus, kind.coefficient) * 2 > 1
    assert (f'leaves {kind.pcpus // web.vcpus} for {kind.servers(web)}'
            in prose(CAPACITY))


def test_what_packs(flavors):
    """All web servers that fit, and what fits beside them."""
    kind, web = FLEET['mid'], flavors['web']
    servers = kind.packed_servers(web)
    left = kind.packed(*[web] * servers)
    more = kind.servers(web) - servers
    assert not left.takes(web)
    assert (f'accepts {servers} web servers. {left.room_cu} CU are left, in '
            f'pieces of {left.largest_vcpu_cu} CU: enough for {more} more web '
            'servers' in prose(CAPACITY))
    assert (f'The {servers} web servers on *mid* strand all '
            f'{left.stranded_cu} CU' in prose(CAPACITY))
    desktops, batches = (kind.packed_servers(flavors[name], *[web] * servers)
                         for name in ('desktop', 'batch'))
    assert (f'{desktops} desktops or {batches} batch servers still fit'
            in prose(CAPACITY))


def test_what_the_least_server_got():
    """By the table of measurements: its last columns, from least to most."""
    cases = re.findall(
        r'^.* (\d+) +(\S+)-\S+ +(\S+)-\S+ +(\S+)-\S+ +(\S+)-\S+$',
        (project.TOP / GUARANTEE).read_text(), re.MULTILINE)
    sold, *least = zip(*[map(float, case) for case in cases], strict=True)
    cap, noisy_cap, reserved, noisy_reserved = map(min, least)
    found = rows(CAPACITY)
    assert f'other servers {cap} % {reserved} %' in found
    assert ('other servers, and work of the host '
            f'{noisy_cap} % {noisy_reserved} %') in found
    assert (f'{min(sold):g} to {max(sold):g} of its 200 CU'
            in prose(CAPACITY))


def test_what_is_for_sale_where_speed_is_guaranteed():
    text = prose(CAPACITY)
    mid, new = map(Partition, KEPT_PCPUS)
    unsold_part = 1 - RESERVABLE_PART * (1 - guarantee.UNSOLD_PART)
    for name, host in ('mid', mid), ('new', new):
        assert (f'{name}: {host.kind.capacity_cu} * '
                f'{float(RESERVABLE_PART):g} * '
                f'{float(1 - guarantee.UNSOLD_PART):g} = {host.for_sale_cu} '
                'CU for sale' in text)
        assert round(host.unsold_cu / host.kind.capacity_cu, 3) == round(
            float(unsold_part), 3)
    assert f'``reserved``: {mid.unsold_cu} and {new.unsold_cu} CU' in text
    assert f'against the same {mid.for_sale_cu} and {new.for_sale_cu}' in text
    assert f'reserves {float(unsold_part):.1%}'.replace('%', ' %') in text
    assert f'sells {float(1 - unsold_part):.0%}'.replace('%', ' %') in text
    most = [units.format_cu(guarantee.MOST_SHARE * host.pcpu_cu)
            for host in (mid, new)]
    assert f'{most[0]} CU on *mid*, {most[1]} CU on *new*' in text


def test_how_many_pcpus_the_host_keeps():
    for name, kept in KEPT_PCPUS.items():
        kind = FLEET[name]
        pcpus = kind.reserved_cu / units.pcpu_cu(kind.coefficient)
        assert (f'{kind.reserved_cu} CU are {float(pcpus):.2g} pCPUs of '
                f'*{name}*' in prose(CAPACITY))
        assert pcpus <= kept


def test_how_many_guaranteed_servers_fit(flavors):
    found = rows(CAPACITY)
    for kind in KEPT_PCPUS:
        for name, flavor in flavors.items():
            host = Partition(kind)
            cost_cu, count = host.cost_cu(flavor), host.fill(flavor)
            if count:
                row = (f'{name} {flavor.units} {float(cost_cu):.4g} {count} '
                       f'{FLEET[kind].servers(flavor)} '
                       f'{FLEET[kind].packed_servers(flavor)}')
                assert row in found, (kind, row)
            else:
                assert not FLEET[kind].cap(flavor), (kind, name)
    host = Partition('mid')
    assert (f'After {host.fill(flavors["web"])} web servers, Placement still '
            f'has {host.left_cu} CU' in prose(CAPACITY))


def test_an_order_of_two_speeds(flavors):
    text = prose(CAPACITY)
    web, database = flavors['web'], flavors['database']
    assert 'An order is 50 databases and 200 web servers' in text
    full, third = Partition('new'), Partition('new')
    each = full.fill(database)
    total_cu = third.free_cu
    rest = third.fill(database, 50 - 2 * each)
    assert third.fill(web, 0) == 0
    cost_cu, left_cu = third.cost_cu(database), third.free_cu
    webs = Partition('mid').fill(web)
    more = 200 - webs * FLEET['mid'].hosts
    beside = third.fill(web)
    for part in (
            f'A database fits *new* only, {each} on a host. Two hosts run '
            f'{2 * each}. The third runs {rest}: {rest} * '
            f'{float(cost_cu):g} = {float(rest * cost_cu):g} CU with I/O, of '
            f'{float(total_cu):g} CU. The other {float(left_cu):g} CU are '
            f'enough for {beside} web servers of '
            f'{float(third.cost_cu(web)):g} CU.',
            f'{webs} fit on each of {FLEET["mid"].hosts} *mid* hosts, '
            f'{webs * FLEET["mid"].hosts} in all. The other {more} run on the '
            'third',
            f'need {math.ceil(200 / FLEET["mid"].servers(web))} *mid* hosts '
            'by their units, and '
            f'{math.ceil(200 / FLEET["mid"].packed_servers(web))} if'):
        assert part in text, part
    assert rest <= each and 0 < more <= beside


def test_how_many_vcpus_a_pcpu_has_room_for(flavors):
    for name, count, word in (('web', 1, 'one vCPU'), ('desktop', 3, 'three'),
                              ('batch', 5, 'five')):
        flavor = flavors[name]
        cu = units.cu_per_vcpu(flavor.units, flavor.vcpus)
        assert units.pcpu_cu(FLEET['mid'].coefficient) // cu == count
        assert f'{word} of {cu} CU' in prose(CAPACITY)


def test_what_servers_take_with_their_io():
    found = rows(CAPACITY)
    least, most = (100 * (guarantee.cost_pcpus(share, 1) - share) / 2
                   for share in (Fraction(1, 100), Fraction(1)))
    assert (f'from {float(least):g} % to {float(most):g} % of a pCPU'
            in prose(CAPACITY))
    for vcpus, cu in (1, 4), (1, 10), (1, 24), (1, 60), (2, 120), (4, 240):
        cost_cu = 100 * guarantee.cost_pcpus(Fraction(cu, 100) / vcpus, vcpus)
        row = f'{vcpus} {cu} {float(cost_cu):g} {float(cu / cost_cu):.0%}'
        assert row.replace('%', ' %') in found, row


def test_a_mix_of_flavors(flavors):
    used = {'web': 10, 'build': 2, 'desktop': 16}
    sums = [count * flavors[name].units for name, count in used.items()]
    left = FLEET['mid'].for_sale_cu - sum(sums)
    assert (f'{" + ".join(map(str, sums))} = {sum(sums)} CU, and {left} are '
            'left' in prose(CAPACITY))


def test_what_is_left_in_pieces(flavors):
    kind, web = FLEET['old'], flavors['web']
    left = kind.for_sale_cu - kind.servers(web) * web.units
    assert left < web.units
    assert (f'{kind.servers(web)} of them on each, {left} CU are left of each '
            f'host, {left * kind.hosts} CU of all' in prose(CAPACITY))


def test_what_over_commitment_leaves():
    found = rows(CAPACITY)
    for ratio in 1, 1.25, 1.5, 2:
        sold = FLEET['mid'].for_sale_cu * ratio
        row = ' '.join((number(ratio), number(sold), number(60 / ratio)))
        assert row in found


def test_room_to_drain_a_host(flavors):
    kind, database = FLEET['new'], flavors['database']
    each = kind.servers(database)
    assert (f'{each} on each of {kind.hosts} hosts, {each * kind.hosts} in '
            f'all; no more than {each * (kind.hosts - 1)} may be sold'
            in prose(CAPACITY))


def test_the_next_host(flavors):
    found = rows(CAPACITY)
    offers = {'many cores': (Kind(1, 96, 1.1, 0), 15),
              'fast cores': (Kind(1, 64, 1.8, 0), 18)}
    for name, (kind, price) in offers.items():
        row = ' '.join((
            name, number(kind.pcpus), number(kind.coefficient),
            number(kind.capacity_cu), number(price),
            str(math.floor(kind.capacity_cu / price)),
            'yes' if kind.cap(flavors['database']) else 'no'))
        assert row in found, row


def test_the_slowest_vcpu():
    text = prose(CAPACITY)
    for kind in FLEET.values():
        least = units.least_cu_per_vcpu(kind.coefficient, tick_us=TICK_US)
        assert f'{units.format_cu(least)} CU' in text


def test_speed_tiers():
    text = prose(CAPACITY)
    assert ', '.join(map(str, host_stats.SPEED_TIERS_CU)) in text
    reached = {name: max(tier for tier in host_stats.SPEED_TIERS_CU
                         if tier <= units.pcpu_cu(kind.coefficient))
               for name, kind in FLEET.items()}
    assert reached == {'old': 60, 'mid': 100, 'new': 175}
    assert 'CUSTOM_VQOS_SPEED_175' in text
