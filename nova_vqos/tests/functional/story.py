# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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
TOO_FAST_FOR_SLOW = 120
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
            self._say('host %s: %d pCPUs of %g CU, %d CU for sale' % (
                host, PCPUS, 100 * coefficient,
                cloud.inventory(host)['total']))
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
        self.check(
            'stock Nova copies the quota: the speed changes by the ratio of '
            'the hosts', (seen.quota_us, seen.cap_cu) == (
                quota_us, UNITS * COEFFICIENTS['slow']
                / COEFFICIENTS['fast']),
            'quota %d us on both, worth %g CU on fast and %g CU on slow' % (
                seen.quota_us, UNITS, seen.cap_cu))

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
            self._check_claim(moving, host)
            self._check_arrival(host)
        wrong = [m for m in self.measurements if m.story == 'units'
                 and abs(m.cap_cu / UNITS - 1) > 0.001]
        self.check('every cap is worth what was promised, within 0.1 %',
                    not wrong, 'of %d CU: %s' % (UNITS, ', '.join(
                        '%s %g' % (m.host, m.cap_cu)
                        for m in self.measurements if m.story == 'units')))

    def _too_fast(self):
        """4. A server too fast for slow: not there, not even by force."""
        cloud = self._cloud
        flavor = cloud.make_flavor(TOO_FAST_FOR_SLOW)
        servers = [self._boot(flavor) for _ in range(2)]
        hosts = [cloud.host_of(server) for server in servers]
        self.check('it is scheduled on fast only', hosts == ['fast'] * 2,
                    '%d CU for one vCPU, twice: %s' % (
                        TOO_FAST_FOR_SLOW, ', '.join(hosts)))
        refused, fault = self._boot_refused(flavor, 'slow')
        self.check('asked for slow it finds no host', refused, fault)
        try:
            self._force(servers[0], 'slow', '2.30')
        except api_client.OpenStackApiException as exc:
            status = exc.response.status_code
            reason = exc.response.json()['badRequest']['message']
        else:
            status, reason = 202, 'it was taken'
        self.check('forced to slow (API 2.30): 400 with the reason',
                    status == 400 and str(TOO_FAST_FOR_SLOW) in reason,
                    '%d: %s' % (status, reason))
        self._force(servers[0], 'slow', '2.67')
        event = cloud._wait_for_action_fail_completion(
            servers[0], 'live-migration', _CHECK_EVENT)
        self.check('forced to slow (API 2.67): the reason is in the event',
                    str(TOO_FAST_FOR_SLOW) in event['details'],
                    event['details'])
        cloud._wait_for_server_parameter(
            servers[0], {'OS-EXT-STS:task_state': None})
        self._check_claim(servers[0], 'fast', TOO_FAST_FOR_SLOW)

    def _capacity(self):
        """5. Capacity: the server that no longer fits."""
        cloud = self._cloud
        total = cloud.inventory('slow')['total']
        flavor = cloud.make_flavor(UNITS)
        fitting = total // UNITS
        for number in range(fitting):
            server = self._boot(flavor, 'slow')
            self._say('  server %d on slow: allocation %s' % (
                number + 1, cloud.allocated(server['id'])))
        refused, fault = self._boot_refused(flavor, 'slow')
        self.check(
            'the server that no longer fits is refused by Placement',
            refused and 'Got no allocation candidates' in cloud.log(),
            '%d of %d CU used, %d more: %s' % (
                cloud.used('slow'), total, UNITS, fault))

    def _bad_value(self):
        """6. A bad value: told at the API, or no host is found."""
        cloud = self._cloud
        specs = {base.UNITS_KEY: 'sixty'}
        try:
            cloud.make_flavor(specs=specs)
        except api_client.OpenStackApiException as exc:
            status = exc.response.status_code
            answer = exc.response.json()['badRequest']['message']
        else:
            status, answer = 200, 'it was taken'
        self.check(
            'the API answers 400, and names key, value, and what it may be',
            status == 400 and base.UNITS_KEY in answer and 'sixty' in answer,
            '%d: %s' % (status, answer))
        flavor = cloud.make_flavor(specs=specs, version=base.NOT_VALIDATED)
        refused, fault = self._boot_refused(flavor)
        self.check('made with an API before 2.86 it finds no host', refused,
                    fault)

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
        with utils.temporary_mutation(
                self._cloud.api, microversion=version):
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
        self._say('  %s on %s: quota %s of %s us, worth %g CU' % (
            moment, host, seen.quota_us, seen.period_us, cap_cu))
        return seen

    def _check_claim(self, server, host, cu=UNITS):
        allocated = self._cloud.allocated(server['id'])
        self.check('its units are claimed on %s alone' % host,
                    allocated == {host: cu}, str(allocated))

    def _check_arrival(self, host):
        """The cap is right in the XML that the guest arrives with."""
        arrived, sent, received = self._cloud.migrations.arrived[-1]
        expected = self.measurements[-1]
        found = base.tunables_of(received)
        self.check(
            'the hook caps it anew before it runs on %s' % host,
            arrived == host and found.quota == expected.quota_us
            and found != base.tunables_of(sent),
            'quota %s us came in, %s us goes on' % (
                base.tunables_of(sent).quota, found.quota))

    def check(self, name, passed, detail):
        """Keep what was checked, and say it."""
        self.checks.append(Check(name, bool(passed), detail))
        self._say('  %s  %s' % ('ok ' if passed else 'NOT', name))
        self._say('       %s' % detail)

    def _clean_up(self):
        while self._kept:
            server = self._kept.pop()
            self._cloud.api.delete_server(server['id'])
            self._cloud._wait_until_deleted(server)
        for host in COEFFICIENTS:
            self._cloud.wait_until_used(host, 0)
