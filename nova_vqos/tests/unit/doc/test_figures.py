# SPDX-License-Identifier: Apache-2.0
"""The figures of the cookbook and of capacity planning, computed anew.

By the functions that caps and inventories are made by, of the flavors that
the cookbook prints, on the cloud that capacity planning invents.
"""

from fractions import Fraction
import math
import typing as ty

import pytest

from nova_vqos import core_types
from nova_vqos import cputune
from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos import units
from nova_vqos.quantum import classes
from nova_vqos.tests.fixtures import doc_examples
from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout

COOKBOOK = 'doc/source/admin/cookbook.rst'
CAPACITY = 'doc/source/admin/capacity.rst'
TICK_US = 4000


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


FLEET = {
    'old': Kind(10, 24, 0.6, 90),
    'mid': Kind(10, 32, 1.0, 200),
    'new': Kind(4, 64, 1.8, 520),
}


def rows(page):
    """The lines of a page, blanks made one."""
    text = (project.TOP / page).read_text()
    return [' '.join(line.split()) for line in text.splitlines()]


def prose(page):
    return ' '.join((project.TOP / page).read_text().split())


@pytest.fixture(scope='module')
def flavors():
    """The flavors of the cookbook by name."""
    made = doc_examples.flavors(COOKBOOK)
    return {name: policy.parse(specs, vcpus)
            for _where, name, vcpus, specs in made}


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
    cost_ns = 2061 + 0.142 * 200
    packets_cu = cost_ns * 1e-9 * 100_000 * units.CU_PER_REFERENCE_PCPU
    assert f'{packets_cu:.1f} CU' in prose(COOKBOOK)
    assert f'{packets_cu / 160:.0%}' == '13%'
    assert 'bridge | rx | 2061 | 2009 | 2112 | 0.142 |' in ' '.join(
        rows('doc/source/admin/calibration.rst'))


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
    host = core_types.CoreType(
        frozenset(range(kind.pcpus)), kind.coefficient,
        Fraction(kind.capacity_cu))

    def with_servers(*flavors):
        (left,) = core_types.with_servers(
            (host,), [core_types.Server(one.units, None, one.vcpus)
                      for one in flavors],
            reserved_cu=kind.reserved_cu, exact=True)
        return left

    def fitting(flavor, *others):
        return next(count for count in range(kind.pcpus)
                    if not with_servers(*others, *[flavor] * count).takes(
                        flavor))

    servers = fitting(web)
    left = with_servers(*[web] * servers)
    more = kind.servers(web) - servers
    assert not left.takes(web)
    assert (f'accepts {servers} web servers. {left.room_cu} CU are left, in '
            f'pieces of {left.largest_vcpu_cu} CU: enough for {more} more web '
            'servers' in prose(CAPACITY))
    desktops, batches = (fitting(flavors[name], *[web] * servers)
                         for name in ('desktop', 'batch'))
    assert (f'{desktops} desktops or {batches} batch servers still fit'
            in prose(CAPACITY))


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
