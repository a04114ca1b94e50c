# SPDX-License-Identifier: Apache-2.0
"""The demonstration of CPU units, measured on the real cloud.

100 CU are the speed of host ``slow``; ``fast`` has more. The servers that the
story follows have 60 CU: less than either host's pCPU, so that both can give
them, and more than half of slow's, so that only one of them fits there.

What they get is measured twice: CPU time against the cap, and work against
the reference's (gauge.py). The machine's pace is divided out of the work that
is called delivered. That would hide a wrong calibration, which is why the
hosts' paces are compared with one another in the end. Then comes work by which
no host was calibrated (other_work.py), and last ``fast`` is sold out
(sold_out.py).

The whole story has more: servers with several vCPUs (several_vcpus.py), work
that a flavor declares, full hosts and bad flavors. Its spine is what shows on
hosts that are not calibrated: caps, claims and refusals.

One more server has 150 CU, which only a pCPU of fast can give. Placement
counts units and knows no pCPUs: it keeps that server off slow as long as slow
has no more than 100 CU to sell; to see the driver refuse it, slow then sells
each of them twice.

A server of stock Nova promises nothing. Its operator chose a quota that makes
60 CU on ``fast``: that is counted as its promise.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import math
import time

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import changes
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import gauge
from nova_vqos_lab import meter
from nova_vqos_lab import other_work
from nova_vqos_lab import pace
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import results
from nova_vqos_lab import rom
from nova_vqos_lab import several_vcpus
from nova_vqos_lab import sold_out
from nova_vqos_lab import verdict
from nova_vqos_lab import watch

_PROMISED_CU = gauge.PROMISED_CU
_TOO_FAST_CU = 150
_STOCK_TOLERANCE = 0.1
# At that tolerance few will do.
_STOCK_ROUNDS = 3
# Of the calibrated work, one spans ten periods of the cap or more. At the boot
# more would end after the windows of CPU time.
_ROUNDS = {'boot': 6, 'migrated': 10}
# Of the hosts' paces, as each changes by itself.
_CALIBRATION_TOLERANCE = 0.05
# The host of the spine whose server's CPU time is looked at.
_LOOKED_AT = 'fast'

# At servers, and what measures them, by host; and at which moment.
_Look = Callable[
    [Mapping[str, client.Server], Mapping[str, meter.Meter], str], None]

_BAD_VALUES = ('0', 'many', '6_0')
_BAD_FLAVORS = (
    *({policy.UNITS_KEY: value} for value in _BAD_VALUES),
    {f'resources1:{policy.RESOURCE_CLASS}': str(_PROMISED_CU)},
)

# The name of every check that the whole story makes.
CHECKS = (
    'stock-quota-is-copied', 'stock-speed-follows-the-host',
    'calibration-of-fast', 'inventory-of-fast', 'calibration-of-slow',
    'inventory-of-slow', 'flavor-is-accepted',
    *(name for host in ('fast', 'slow') for name in (
        f'cap-from-the-start-on-{host}', f'cap-on-{host}-boot',
        f'cap-on-{host}-migrated', f'allocation-follows-to-{host}',
        f'guest-clock-on-{host}',
        *(f'{what}-on-{host}-{moment}' for moment in ('boot', 'migrated')
          for what in ('first-second', 'cpu-time', 'speed')))),
    *several_vcpus.CHECKS, *other_work.CHECKS,
    'too-fast-boots-on-fast', 'too-fast-finds-no-place-on-slow',
    'forced-migration-claims-units', 'forced-migration-2.30',
    'forced-migration-2.67', 'too-fast-stays',
    'what-fits-boots', 'what-does-not-fit-is-refused', 'hosts-still-differ',
    *sold_out.CHECKS,
    *(f'bad-value-{number}-from-2.86' for number in range(len(_BAD_VALUES))),
    *(f'bad-value-{number}-before-2.86'
      for number in range(len(_BAD_FLAVORS))),
    results.TOLD,
)
# Likewise, of its spine.
SPINE = (
    'inventory-of-fast', 'inventory-of-slow', 'flavor-is-accepted',
    *(name for host in ('fast', 'slow') for name in (
        f'cap-from-the-start-on-{host}', f'cap-on-{host}-boot',
        f'cap-on-{host}-migrated', f'allocation-follows-to-{host}')),
    f'coarse-cpu-time-on-{_LOOKED_AT}',
    'what-fits-boots', 'what-does-not-fit-is-refused',
    'too-fast-boots-on-fast', 'too-fast-finds-no-place-on-slow',
    'bad-value-0-from-2.86', 'bad-value-0-before-2.86', results.TOLD,
)


def run(lab: clouds.Lab, *, whole: bool = True,
        stays: bool = True) -> results.Results:
    """Make the cloud, run the demonstration, and leave the cloud running.

    :param whole: False: the main chapters only
    :param stays: False: the cloud is removed next, so its hosts are calibrated
        by fewer kinds of work, and ``fast`` stays as the last chapter needs it
    :returns: the results, also where it failed before its end
    """
    benchmarks = (profiles.BENCHMARKS if stays
                  else profiles.FEWER_BENCHMARKS)
    with _telling() as found:
        lab.up()
        lab.profiles.calibrate(benchmarks)
        with lab.profiles.paces() as paces:
            story = Story(lab, paces, found)
            with lab.cloud() as cloud:
                story.run_stock(cloud)
            lab.deploy()
            with lab.cloud() as cloud:
                story.run_units(cloud)
                if whole:
                    story.run_details(cloud)
                story.compare_paces()
        story.run_sold_out(stays=stays)
    return found


def run_spine(lab: clouds.Lab) -> results.Results:
    """Make the cloud with given profiles, see SPINE, and leave it running.

    :returns: the results, also where it failed before its end
    """
    with _telling() as found:
        lab.up()
        lab.profiles.give()
        lab.deploy()
        with lab.cloud() as cloud:
            Story(lab, {}, found).run_spine(cloud)
    return found


@contextlib.contextmanager
def _telling() -> Iterator[results.Results]:
    """Note whether the lab, and with it the story, came to its end."""
    began = time.monotonic()
    found = results.Results()
    problem = ''
    try:
        yield found
    except process.LabError as error:
        problem = str(error)
    found.check(results.TOLD, not problem,
                problem or f'after {time.monotonic() - began:.0f} s')


class Story:
    """The demonstration on a lab whose hosts have profiles."""

    def __init__(self, lab: clouds.Lab, paces: Mapping[str, pace.Pace],
                 found: results.Results) -> None:
        """:param paces: of the hosts' pCPUs; none: no speed is measured
        :param found: where measurements and checks are noted
        """
        self._lab = lab
        self._paces = paces
        self._began_s = time.monotonic()
        self._found = found
        self._check = found.check
        self._profiles = lab.profiles
        self._pcpu_cu = {name: self._profiles.pcpu_cu(name)
                         for name in lab.hosts}
        self._benchmarks = {
            kind: self._profiles.benchmark(name) for kind, name in (
                (gauge.CALIBRATED, pace.BENCHMARK),
                *other_work.DECLARED.items())}
        self._gauge = gauge.Gauge(lab, paces, self._benchmarks, found)
        self._images: dict[str, str] = {}

    # 1. Stock Nova.

    def run_stock(self, cloud: client.Cloud) -> None:
        """A quota is worth something else on each host."""
        self._make_images(cloud)
        period_us = config.period_us()
        quota_us = round(_PROMISED_CU / self._pcpu_cu['fast'] * period_us)
        cloud.make_flavor('stock-quota', {
            'quota:cpu_quota': str(quota_us),
            'quota:cpu_period': str(period_us)})
        with self._chapter('stock Nova: a quota on fast, then on slow'):
            server = cloud.boot('stock', 'stock-quota',
                                self._images['work'], 'fast')
            # While that boots.
            profiles.start_paces(self._paces)
            server.wait_active()
            before = self._measure('stock', server, 'boot',
                                   rounds=_STOCK_ROUNDS)
            server.migrate('slow')
            after = self._measure('stock', server, 'migrated',
                                  rounds=_STOCK_ROUNDS)
            cap = self._lab.hosts['slow'].vcpu_cap(server.domain)
            ratio = after.delivered_cu / before.delivered_cu
            # For this work.
            hosts = self._pcpu_cu['slow'] / self._pcpu_cu['fast'] * (
                1 + after.predicted_error) / (1 + before.predicted_error)
            self._check(
                'stock-quota-is-copied', cap == (quota_us, period_us),
                f'the same quota on slow: {_cap_text(cap)}')
            self._check(
                'stock-speed-follows-the-host', verdict.of_error(
                    ratio / hosts - 1, _STOCK_TOLERANCE, math.hypot(
                        *(one.uncertainty or 0 for one in (before, after)))),
                f'{before.delivered_cu:.1f} CU on fast became '
                f'{after.delivered_cu:.1f} CU on slow: {ratio:.2f} times; '
                f'the hosts differ by {hosts:.2f} for this work')
            server.delete()

    # 2. With units.

    def run_units(self, cloud: client.Cloud) -> None:
        """The same speed everywhere, also for other programs."""
        for name in self._lab.hosts:
            uncertain = self._profiles.uncertainty(name)
            self._check(
                f'calibration-of-{name}',
                uncertain <= profiles.WIDEST_INTERVAL or None,
                f'95 % interval of {uncertain:.1%}, wanted: '
                f'{profiles.WIDEST_INTERVAL:.0%}; why it is wider is in the '
                f'log calibrate-{name}')
            self._check_inventory(cloud, name)
        self._make_flavor(cloud)
        with self._chapter('with units: the same speed on both hosts'):
            self._change_places(cloud, self._measure_both)
        with self._chapter('programs of a visitor'):
            other_work.run_programs(self._lab, cloud, self._paces,
                                    self._found)

    def run_details(self, cloud: client.Cloud) -> None:
        """What comes of servers, flavors and requests of other kinds."""
        with self._chapter('kinds of work that flavors declare'):
            other_work.run_declared(self._lab, cloud, self._gauge,
                                    self._images, self._found)
        with self._chapter('servers of several vCPUs'):
            several_vcpus.run(self._lab, cloud, self._images['spinning'],
                              self._found)
        with self._chapter('capacity: Placement refuses what does not fit'):
            self._capacity(cloud)
        with self._chapter('a server that only fast is fast enough for'):
            self._force(self._too_fast(cloud))
        with self._chapter('flavors with a bad value'):
            for number in range(len(_BAD_FLAVORS)):
                self._bad_value(cloud, number)

    def run_sold_out(self, *, stays: bool) -> None:
        """What a guarantee is for; nothing else is to run on the machine.

        :param stays: whether the cloud is used afterwards
        """
        with self._chapter('a host that is sold out, and noise beside'), \
                contextlib.ExitStack() as stack:
            if stays:
                stack.enter_context(
                    changes.guaranteeing(self._lab, 'fast'))
            else:
                changes.guarantee(self._lab, 'fast')
            cloud = stack.enter_context(self._lab.cloud())
            sold_out.run(self._lab.hosts['fast'], cloud, self._images,
                         self._pcpu_cu['fast'], self._found, stays=stays)

    def run_spine(self, cloud: client.Cloud) -> None:
        """What needs no measurement of speed, once each."""
        self._make_images(cloud)
        for name in self._lab.hosts:
            self._check_inventory(cloud, name)
        self._make_flavor(cloud)
        with self._chapter('with units: the right cap on both hosts'):
            self._change_places(cloud, self._look_coarsely)
        with self._chapter('capacity: Placement refuses what does not fit'):
            self._capacity(cloud)
        with self._chapter('a server that only fast is fast enough for'):
            self._too_fast(cloud).delete()
        with self._chapter('a flavor with a bad value'):
            self._bad_value(cloud, 0)

    def _check_inventory(self, cloud: client.Cloud, host: str) -> None:
        units_of_host = cloud.inventory(host)[policy.RESOURCE_CLASS]
        pcpus = len(self._lab.hosts[host].pcpus)
        self._check(
            f'inventory-of-{host}',
            units_of_host['total'] == math.floor(
                pcpus * self._pcpu_cu[host]),
            f'{units_of_host["total"]} CU in Placement, {pcpus} pCPUs of '
            f'{self._pcpu_cu[host]:.2f} in the profile; '
            f'{cloud.capacity_cu(host)} are sold')

    def _make_flavor(self, cloud: client.Cloud) -> None:
        answer = cloud.make_flavor(
            'units', {policy.UNITS_KEY: str(_PROMISED_CU)})
        self._check('flavor-is-accepted', answer.status == 200,
                    f'{_PROMISED_CU} CU: {answer.status} {answer.message}')

    def _change_places(self, cloud: client.Cloud, look: _Look) -> None:
        """Let a server boot on each host, and both migrate.

        :param look: at both, as soon as they are on their hosts
        """
        with contextlib.ExitStack() as stack:
            servers, meters = {}, {}
            for name, host in (('one', 'fast'), ('two', 'slow')):
                server = cloud.boot(name, 'units', self._images['work'], host)
                servers[host] = server
                meters[host] = stack.enter_context(
                    self._gauge.meter_of(server, host))
            for host, server in servers.items():
                server.wait_active()
                self._check_cap(server, host, f'cap-on-{host}-boot')
            look(servers, meters, 'boot')
        with contextlib.ExitStack() as stack:
            one, two = servers['fast'], servers['slow']
            servers, meters = {}, {}
            # Slow has no room for both.
            for host, server in (('fast', two), ('slow', one)):
                servers[host] = server
                meters[host] = stack.enter_context(
                    self._gauge.meter_of(server, host))
                self._migrate(server, host)
            look(servers, meters, 'migrated')
        client.delete_all(servers.values())

    def _measure_both(self, servers: Mapping[str, client.Server],
                      meters: Mapping[str, meter.Meter], moment: str) -> None:
        """Measure a server on each host.

        :param servers: by host
        :param meters: of them, by host, since before they came there
        """
        for found in self._gauge.speeds(
                'units', dict.fromkeys(servers.values(), gauge.CALIBRATED),
                moment, promised_cu=_PROMISED_CU,
                rounds=_ROUNDS[moment]).values():
            self._gauge.check_speed(found)
        # All of that was measured meanwhile, or nearly.
        for host in servers:
            self._gauge.check_cpu_time(meters[host], host, moment,
                                       self._wanted_cap(host))

    def _look_coarsely(self, _servers: Mapping[str, client.Server],
                       meters: Mapping[str, meter.Meter],
                       moment: str) -> None:
        if moment == 'boot':
            self._gauge.check_coarsely(
                meters[_LOOKED_AT], _LOOKED_AT, self._wanted_cap(_LOOKED_AT))

    def _migrate(self, server: client.Server, host: str) -> None:
        """Migrate with all that is looked at on the way."""
        domain = server.domain
        with watch.CapWatch(self._lab.hosts[host], domain) as seen:
            server.migrate(host)
        wanted = self._wanted_cap(host)
        self._check(
            f'cap-from-the-start-on-{host}',
            seen.caps()[:1] == [wanted]
            and set(seen.caps()) == {wanted}
            and seen.used_before_ns is not None
            and seen.used_before_ns < 50_000_000,
            f'first cap seen: {_cap_text(next(iter(seen.caps()), None))}, '
            f'after {(seen.used_before_ns or 0) / 1e6:.1f} ms of CPU time; '
            f'ever seen: {", ".join(map(_cap_text, seen.caps()))}; right: '
            f'{_cap_text(wanted)}')
        self._check_cap(server, host, f'cap-on-{host}-migrated')
        provider = server.cloud.provider(host)
        allocations = server.allocations()
        claimed = {uuid: one.get(policy.RESOURCE_CLASS)
                   for uuid, one in allocations.items()}
        self._check(
            f'allocation-follows-to-{host}',
            claimed == {provider: _PROMISED_CU},
            f'{sum(filter(None, claimed.values()))} CU on {len(claimed)} '
            f'host(s), {host} among them: {provider in claimed}')

    def compare_paces(self) -> None:
        """See that the hosts differ as much as they did when calibrated."""
        now_s = time.monotonic()
        each = {name: one.between(self._began_s, now_s)
                for name, one in self._paces.items()}
        fast, slow = (self._pcpu_cu[name] for name in ('fast', 'slow'))
        drift = each['fast'] / each['slow'] - 1
        self._check(
            'hosts-still-differ',
            abs(drift) <= _CALIBRATION_TOLERANCE or None,
            f"fast's pCPU is {fast / slow:.2f} times slow's by the profiles, "
            f'{fast / slow * (1 + drift):.2f} times in the mean of all the '
            f'story ({drift:+.1%}), wanted: within '
            f'{_CALIBRATION_TOLERANCE:.0%}; of their calibrated speed, fast '
            f'had {each["fast"]:.1%}, slow {each["slow"]:.1%}')

    def _too_fast(self, cloud: client.Cloud) -> client.Server:
        """:returns: a server that only fast can have"""
        cloud.make_flavor('too-fast', {policy.UNITS_KEY: str(_TOO_FAST_CU)})
        server = cloud.boot('too-fast', 'too-fast',
                            self._images['work'])
        reason = server.wait_settled()
        self._check('too-fast-boots-on-fast',
                   not reason and server.host == 'fast',
                   reason or f'{_TOO_FAST_CU} CU: on {server.host}')
        refused = cloud.boot('too-fast-for-slow', 'too-fast',
                             self._images['idle'], 'slow')
        reason = refused.wait_settled()
        self._check('too-fast-finds-no-place-on-slow',
                   'No valid host' in reason, reason or 'it booted')
        refused.delete()
        return server

    def _force(self, server: client.Server) -> None:
        """Try to get a server onto a host that is too slow for it."""
        self._measure('units', server, 'boot', rounds=_ROUNDS['boot'],
                      promised_cu=_TOO_FAST_CU)
        answer = server.request_migration('slow', force=True, version='2.30')
        self._check('forced-migration-claims-units', answer.status == 400
                   and 'capacity' in answer.message,
                   f'{answer.status}: {answer.message}')
        # Placement knows how many units there are, not how fast a pCPU is:
        # where it would let the server in, the driver refuses.
        ratios = {'slow': 2.0}
        self._lab.nodes['slow'].sell_units(ratios['slow'])
        self._lab.wait_for_units(ratios)
        answer = server.request_migration('slow', force=True, version='2.30')
        self._check('forced-migration-2.30', answer.status == 400
                   and 'pCPU' in answer.message,
                   f'{answer.status}: {answer.message}')
        answer = server.request_migration('slow', force=True, version='2.67')
        event = server.wait_for_event(
            'live-migration', 'compute_check_can_live_migrate_destination',
            '2.84')
        details = event.get('details') or ''
        self._check(
            'forced-migration-2.67', answer.status == 202
            and event['result'] == 'Error' and 'pCPU' in details,
            f'{answer.status}; the event says from 2.84: {details}')
        server.wait_idle()
        answer = server.request_migration('slow')
        shown = server.wait_idle()
        self._check(
            'too-fast-stays', shown['status'] == 'ACTIVE'
            and shown['OS-EXT-SRV-ATTR:host'] == 'fast'
            and list(server.allocations()) == [
                server.cloud.provider('fast')],
            f'unforced: {answer.status}; {shown["status"]} on '
            f'{shown["OS-EXT-SRV-ATTR:host"]}, where its allocation is')
        server.delete()
        # As it was, for a cloud that stays.
        self._lab.nodes['slow'].sell_units()
        self._lab.wait_for_units()

    def _capacity(self, cloud: client.Cloud) -> None:
        servers = []
        capacities_cu = {name: cloud.capacity_cu(name)
                         for name in self._lab.hosts}
        room = {name: cu // _PROMISED_CU for name, cu in capacities_cu.items()}
        for name, count in room.items():
            for number in range(count):
                servers.append(cloud.boot(
                    f'filler-{name}-{number}', 'units', self._images['idle'],
                    name))
        reasons = list(filter(None, (one.wait_settled() for one in servers)))
        usages = {name: cloud.usages(name)[policy.RESOURCE_CLASS]
                  for name in self._lab.hosts}
        self._check(
            'what-fits-boots', not reasons and usages == {
                name: count * _PROMISED_CU for name, count in room.items()},
            '; '.join(reasons) or ', '.join(
                f'{used} of {capacities_cu[name]} CU claimed on {name}'
                for name, used in usages.items()))
        candidates = cloud.placement(
            '/allocation_candidates?resources='
            f'{policy.RESOURCE_CLASS}:{_PROMISED_CU}')
        one_more = cloud.boot('one-more', 'units', self._images['idle'])
        reason = one_more.wait_settled()
        self._check(
            'what-does-not-fit-is-refused', 'No valid host' in reason
            and not candidates['allocation_requests'],
            f'{reason or "it booted"}; Placement offers '
            f'{len(candidates["allocation_requests"])} candidates')
        client.delete_all((*servers, one_more))

    def _bad_value(self, cloud: client.Cloud, number: int) -> None:
        specs = _BAD_FLAVORS[number]
        shown = ', '.join(f'{name}={value}' for name, value in specs.items())
        if policy.UNITS_KEY in specs:
            answer = cloud.make_flavor(f'bad-new-{number}', specs)
            self._check(
                f'bad-value-{number}-from-2.86',
                answer.status == 400 and policy.UNITS_KEY in answer.message,
                f'{shown}: {answer.status} {answer.message}')
            cloud.delete_flavor(f'bad-new-{number}')
        answer = cloud.make_flavor(f'bad-old-{number}', specs, version='2.85')
        server = cloud.boot(f'bad-{number}', f'bad-old-{number}',
                            self._images['idle'])
        reason = server.wait_settled()
        self._check(
            f'bad-value-{number}-before-2.86', answer.status == 200
            and 'No valid host' in reason,
            f'{shown}: {answer.status}, then: {reason or "it booted"}')
        server.delete()
        cloud.delete_flavor(f'bad-old-{number}')

    # Tools of the story.

    @contextlib.contextmanager
    def _chapter(self, title: str) -> Iterator[None]:
        process.say(f'== {title}')
        began = time.monotonic()
        yield
        process.say(f'   {time.monotonic() - began:.0f} s')

    def _measure(self, story: str, server: client.Server, moment: str,
                 *, rounds: int, promised_cu: int = _PROMISED_CU
                 ) -> results.Measurement:
        return self._gauge.speed(story, server, moment,
                                 promised_cu=promised_cu, rounds=rounds)

    def _wanted_cap(self, host: str) -> tuple[int, int]:
        return self._profiles.cap(host, _PROMISED_CU)

    def _check_cap(self, server: client.Server, host: str, name: str) -> None:
        cap = self._lab.hosts[host].vcpu_cap(server.domain)
        wanted = self._wanted_cap(host)
        self._check(name, cap == wanted,
                    f'{_cap_text(cap)} in the cgroup, '
                    f'{_cap_text(wanted)} by the profile')

    def _make_images(self, cloud: client.Cloud) -> None:
        kernel, ramdisk = guest.find_kernel(), clouds.initramfs()
        for name, kinds in (
                ('work', (gauge.CALIBRATED,)),
                *((kind, (kind,)) for kind in other_work.DECLARED)):
            self._images[name] = cloud.make_image(
                name, kernel, ramdisk, guest.command_line(
                    # The same work as in the calibration, see GuestRunner.
                    kinds, events={kind: self._benchmarks[kind].round_events
                                   for kind in kinds}))
        self._images['idle'] = cloud.make_image(
            'idle', kernel, ramdisk, guest.command_line(rounds=1))
        self._images['boot-sector'] = cloud.make_disk_image(
            'boot-sector', rom.boot_sector())
        self._images['spinning'] = cloud.make_image(
            'spinning', kernel, ramdisk, guest.command_line(
                spinners=several_vcpus.MOST_VCPUS))


def _cap_text(cap: tuple[int, int] | None) -> str:
    return 'none' if cap is None else f'{cap[0]}/{cap[1]} us'
