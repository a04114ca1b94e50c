# SPDX-License-Identifier: Apache-2.0
"""The story of the demo, told on the cloud in one process.

Claims, refusals and caps are what Nova, Placement, the driver, the filter and
the hook really make of them. No guest runs, so no speed is measured: what a
cap is worth is computed from it and the host's profile.
"""

import dataclasses
from fractions import Fraction

from nova.tests.functional.api import client as api_client

from nova import utils
from nova_vqos import units
from nova_vqos.tests.functional import base

UNITS = 60
#: Of what a cap is worth, relative to what was promised.
CAP_TOLERANCE = 0.001
TOO_FAST_FOR_SLOW = 120
BAD_VALUES = ((base.UNITS_KEY, 'sixty'), (base.UNITS_KEY, '0'),
              ('vqos:cap', 'soft'))
PCPUS = 2
COEFFICIENTS = {'fast': 2.0, 'slow': 0.8}

_CHECK_EVENT = 'compute_check_can_live_migrate_destination'


@dataclasses.dataclass
class Measurement:
    """What a server has on a host.

    :ivar delivered_cu: measured; never here
    :ivar quota_us: of its cap, None without
    :ivar cap_cu: what the cap is worth there, computed
    """

    story: str
    host: str
    moment: str
    work: str | None
    promised_cu: float
    quota_us: int | None
    period_us: int | None
    cap_cu: float | None
    delivered_cu: float | None = None


@dataclasses.dataclass
class Check:
    name: str
    passed: bool
    detail: str


class Story:
    """Tells the story, and keeps what was seen.

    :ivar measurements: of :class:`Measurement`
    :ivar checks: of :class:`Check`
    """

    def __init__(self, say):
        """:param say: called with each line for the reader"""
        self.measurements: list[Measurement] = []
        self.checks: list[Check] = []
        self._say = say
        self._cloud = None
        self._kept = []

    def tell(self, cloud):
        """:param cloud: a set up :class:`base.VqosTestCase`"""
        self._cloud = cloud
        cloud.migrations.hook = cloud.hook
        for host, coefficient in COEFFICIENTS.items():
            cloud.start_host(host, coefficient, pcpus=PCPUS)
            total = cloud.inventory(host)['total']
            self.check(
                'inventory-of-%s' % host, total == PCPUS * 100 * coefficient,
                '%d CU in Placement, %d pCPUs of %g CU' % (
                    total, PCPUS, 100 * coefficient))
        for step in (self._stock, self._with_units, self._too_fast,
                     self._capacity, self._bad_value):
            self._say('')
            self._say(step.__doc__)
            step()
            self._clean_up()

    # Steps, told by their first line.

    def _stock(self):
        """1. Stock Nova: a quota is copied to a host of another speed."""
        cloud = self._cloud
        period_us = 50000
        quota_us = int(period_us * UNITS / (100 * COEFFICIENTS['fast']))
        with_quota = cloud.make_flavor(specs={
            'quota:cpu_quota': str(quota_us),
            'quota:cpu_period': str(period_us)})
        # A host with units takes only servers with units by default.
        cloud.flags(servers_without_units='allow', group='vqos')
        server = self._boot(with_quota, 'fast')
        self._measure('stock', server, 'boot')
        cloud._live_migrate(server, host='slow')
        seen = self._measure('stock', server, 'migrated')
        cloud.flags(servers_without_units='refuse', group='vqos')
        self.check('stock-quota-is-copied', seen.quota_us == quota_us,
                   'quota %d us on fast, %s us on slow' % (
                       quota_us, seen.quota_us))
        worth = UNITS * COEFFICIENTS['slow'] / COEFFICIENTS['fast']
        self.check('stock-cap-follows-the-host', seen.cap_cu == worth,
                   'worth %g CU on fast, %g CU on slow' % (
                       UNITS, seen.cap_cu))

    def _with_units(self):
        """2, 3. With units: the same speed on both, right from the move."""
        cloud = self._cloud
        flavor = cloud.make_flavor(UNITS)
        moving = self._boot(flavor, 'fast')
        self._measure('units', moving, 'boot')
        self._measure('units', self._boot(flavor, 'slow'), 'boot')
        for host in ('slow', 'fast'):
            cloud._live_migrate(moving, host=host)
            self._measure('units', moving, 'migrated')
            self._check_claim('allocation-follows-to-%s' % host, moving, host)
            self._check_arrival(host)
        for seen in self.measurements:
            if seen.story == 'units':
                self.check(
                    'cap-on-%s-%s' % (seen.host, seen.moment),
                    abs(seen.cap_cu / UNITS - 1) <= CAP_TOLERANCE,
                    'worth %g of %d CU, wanted: within %g %%' % (
                        seen.cap_cu, UNITS, 100 * CAP_TOLERANCE))

    def _too_fast(self):
        """4. A server too fast for slow: not there, not even by force."""
        cloud = self._cloud
        flavor = cloud.make_flavor(TOO_FAST_FOR_SLOW)
        servers = [self._boot(flavor) for _ in range(2)]
        hosts = [cloud.host_of(server) for server in servers]
        self.check('too-fast-boots-on-fast', hosts == ['fast'] * 2,
                   '%d CU for one vCPU, twice: %s' % (
                       TOO_FAST_FOR_SLOW, ', '.join(hosts)))
        refused, fault = self._boot_refused(flavor, 'slow')
        self.check('too-fast-finds-no-place-on-slow', refused, fault)
        try:
            self._force(servers[0], 'slow', '2.30')
        except api_client.OpenStackApiException as exc:
            status = exc.response.status_code
            reason = exc.response.json()['badRequest']['message']
        else:
            status, reason = 202, 'it was taken'
        self.check('forced-migration-2.30',
                   status == 400 and str(TOO_FAST_FOR_SLOW) in reason,
                   '%d: %s' % (status, reason))
        self._force(servers[0], 'slow', '2.67')
        event = cloud._wait_for_action_fail_completion(
            servers[0], 'live-migration', _CHECK_EVENT)
        self.check('forced-migration-2.67',
                   str(TOO_FAST_FOR_SLOW) in event['details'],
                   '202; the event says: %s' % event['details'])
        cloud._wait_for_server_parameter(
            servers[0], {'OS-EXT-STS:task_state': None})
        self._check_claim('too-fast-stays', servers[0], 'fast',
                          TOO_FAST_FOR_SLOW)

    def _capacity(self):
        """5. Capacity: the server that no longer fits."""
        cloud = self._cloud
        total = cloud.inventory('slow')['total']
        flavor = cloud.make_flavor(UNITS)
        claims = [cloud.allocated(self._boot(flavor, 'slow')['id'])
                  for _ in range(total // UNITS)]
        self.check('what-fits-boots',
                   claims == [{'slow': UNITS}] * (total // UNITS),
                   'allocations %s, %d of %d CU used' % (
                       ', '.join(map(str, claims)), cloud.used('slow'),
                       total))
        refused, fault = self._boot_refused(flavor, 'slow')
        self.check(
            'what-does-not-fit-is-refused',
            refused and 'Got no allocation candidates' in cloud.log(),
            '%d more: %s Placement offers no candidates' % (UNITS, fault))

    def _bad_value(self):
        """6. A bad value: told at the API, or no host is found."""
        cloud = self._cloud
        for number, (key, value) in enumerate(BAD_VALUES, 1):
            specs = {base.UNITS_KEY: str(UNITS)} | {key: value}
            try:
                cloud.make_flavor(specs=specs)
            except api_client.OpenStackApiException as exc:
                status = exc.response.status_code
                answer = exc.response.json()['badRequest']['message']
            else:
                status, answer = 200, 'it was taken'
            self.check(
                'bad-value-%d-from-2.86' % number,
                status == 400 and key in answer and repr(value) in answer,
                '%d: %s' % (status, answer))
            refused, fault = self._boot_refused(
                cloud.make_flavor(specs=specs, version=base.NOT_VALIDATED))
            self.check('bad-value-%d-before-2.86' % number, refused,
                       '%s=%s is taken, then: %s' % (key, value, fault))

    # What the steps are made of.

    def _boot(self, flavor, host=None):
        server = self._cloud.boot(flavor, host)
        self._kept.append(server)
        return server

    def _boot_refused(self, flavor, host=None):
        """:returns: whether it was refused without a claim, and how"""
        cloud = self._cloud
        body = cloud._build_server(
            image_uuid=base.IMAGE_ID, flavor_id=flavor, networks='none',
            host=host)
        server = cloud.api.post_server({'server': body})
        self._kept.append(server)
        states = {}

        def ended():
            states.update(cloud.api.get_server(server['id']))
            return states['status'] == 'ACTIVE' or 'fault' in states

        cloud.wait_for(ended, lambda: states)
        fault = states.get('fault', {}).get('message', 'it was booted')
        return (states['status'] == 'ERROR'
                and not cloud.allocated(server['id'])), fault

    def _force(self, server, host, version):
        with utils.temporary_mutation(self._cloud.api, microversion=version):
            self._cloud.api.post_server_action(server['id'], {
                'os-migrateLive': {'host': host, 'force': True,
                                   'block_migration': 'auto'}})

    def _measure(self, story, server, moment):
        host = self._cloud.host_of(server)
        tunables = self._cloud.tunables(server)
        cap_cu = None
        if tunables.quota is not None:
            cap_cu = float(
                Fraction(tunables.quota, tunables.period)
                * units.CU_PER_REFERENCE_PCPU
                * Fraction(COEFFICIENTS[host]).limit_denominator(1000))
        seen = Measurement(
            story=story, host=host, moment=moment, work=None,
            promised_cu=UNITS, quota_us=tunables.quota,
            period_us=tunables.period, cap_cu=cap_cu)
        self.measurements.append(seen)
        self._say('  %s, %s on %s: quota %s of %s us' % (
            story, moment, host, seen.quota_us, seen.period_us))
        return seen

    def _check_claim(self, name, server, host, cu=UNITS):
        allocated = self._cloud.allocated(server['id'])
        self.check(name, allocated == {host: cu},
                   ', '.join('%d CU on %s' % (claimed, where)
                             for where, claimed in allocated.items()))

    def _check_arrival(self, host):
        """The cap is right in the XML that the guest arrives with."""
        arrived, sent, received = self._cloud.migrations.arrived[-1]
        expected = self.measurements[-1]
        found = base.tunables_of(received)
        self.check(
            'cap-from-the-start-on-%s' % host,
            arrived == host and found.quota == expected.quota_us
            and found != base.tunables_of(sent),
            'quota %s us came in, %s us goes on' % (
                base.tunables_of(sent).quota, found.quota))

    def check(self, name, passed, detail):
        """Keep what was checked, and say it."""
        self.checks.append(Check(name, bool(passed), detail))
        self._say('  %-6s %s: %s' % ('ok' if passed else 'FAILED', name,
                                     detail))

    def _clean_up(self):
        while self._kept:
            server = self._kept.pop()
            self._cloud.api.delete_server(server['id'])
            self._cloud._wait_until_deleted(server)
        for host in COEFFICIENTS:
            self._cloud.wait_until_used(host, 0)
