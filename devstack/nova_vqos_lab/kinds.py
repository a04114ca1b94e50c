# SPDX-License-Identifier: Apache-2.0
"""Programs that no host was calibrated by, on both hosts, at equal units.

The coefficient is a mean over kinds of work; a server's own work is none of
them. How far off it is, the profile predicts from the kinds that it knows, by
leaving each one out. Here programs of six other kinds run in guests on both
hosts, first with stock Nova's quota, then with the same CPU units: how long
they take on slow over how long on fast, beside what was predicted. Last each
runs in a server whose units the agent corrects by what it counts of it: on
slow, then on fast, where it is measured anew after half a minute, and on slow
again. A correction makes up for how fast each host is by then. So these times
are as they would be, had the machine been as fast as while the agent measured;
those before, as when it was calibrated. One more server begins other work in
the midst of a move, as one does that wants more than its units. What corrected
servers take of their host, by their caps, is beside what was claimed and
reserved for them.

Guests are emulated. Where slow is made slow by hindering the emulator, kinds
of work feel that in more different ways than they do unlike CPUs; where it is
by a lower clock, all alike: see slowcpu.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import json
import os
import statistics
import time

import prettytable

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos.calibration.cpu import combine
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import pace
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import slowcpu
from nova_vqos_lab import watch

STOCK = 'stock'
UNITS = 'units'
CORRECTED = 'corrected'
_PROMISED_CU = 60
_ROUNDS = 8
# Speeds of a few seconds scatter by more than a correction may be off.
_CORRECTED_ROUNDS = 24
_CALIBRATION_S = 240
_COLUMNS = ('program', 'kind of work', 'stock', 'units', 'predicted',
            'covered', 'to fast', 'to slow', 'takes CU')
# For servers that need more time than their units.
_RESERVE_CU = 40
# Until the agent has measured a server that came: see the guide.
_LEARN_S = 40
# In which it measures nothing.
_UNSETTLED_S = 10
# Uptime of the server that changes its work: it is moved a little before.
_CHANGES_AT_S = 75
_MOVES_AT_S = 72

# The work of a round under emulation, uncapped, is about half a second.
_PERL = (r"while (<>) { @w = split; push @{$k{substr $w[2], 0, 6}}, "
         r"length $w[1] } for (keys %k) { $n += @{$k{$_}} } print $n")
_SQL = ('create table t (a integer, b text); '
        'with recursive n(i) as (select 1 union all select i + 1 from n '
        "where i < 8000) insert into t select i, 'row ' || (i * 7919 % 997) "
        'from n; create index x on t (b); select b, count(*), sum(a) from t '
        'group by b order by 3 desc limit 5')


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that runs in the guests.

    :ivar kind: of work, for people
    :ivar command: does one event, for a shell
    :ivar tool: that the guest needs beside busybox; '': none
    """

    kind: str
    command: str
    tool: str = ''


# The agent must not take its other work for another speed of fast.
CHANGING = 'changing'
_CHANGING_COMMAND = (
    'read -r uptime idle < /proc/uptime\n'
    f'if [ "${{uptime%.*}}" -lt {_CHANGES_AT_S} ]\n'
    "then echo 'scale=300; 4 * a(1)' | bc -l\n"
    'else sort -k 2 /text\n'
    'fi')

PROGRAMS: Mapping[str, Program] = {
    'perl': Program('interpreter', f"perl -e '{_PERL}' /text /text /text",
                    'perl'),
    'sort': Program('sorting', 'sort -k 2 /text'),
    'bzip2': Program('compression', 'bzip2 -c /text'),
    'sqlite3': Program('database', f'sqlite3 :memory: "{_SQL}"', 'sqlite3'),
    'sed': Program('parsing', r"sed -E 's/([0-9]+) (\w+) (word)?([0-9]+)/"
                   r"\4:\2,\1/; s/,(.)/;\1\1/' /text"),
    'bc': Program('numbers of many digits', "echo 'scale=300; 4 * a(1)' | "
                  'bc -l'),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A program's time on slow over that on fast.

    :ivar stock: with stock Nova, which copies the quota
    :ivar units: at equal units
    :ivar to_fast: where the agent corrects them, before and after a move from
        slow to fast
    :ivar to_slow: likewise, back to slow
    :ivar takes_cu: the most that it may use of a host where it is corrected
    """

    program: str
    kind: str
    stock: float
    units: float
    to_fast: float
    to_slow: float
    takes_cu: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All programs, and what the profiles predicted.

    :ivar predicted: least and greatest time on slow over that on fast, at
        equal units, by the kinds of work that were calibrated
    :ivar hosts: how many times faster fast is than slow, by the profiles
    :ivar slow: what makes slow slow, one of slowcpu.WAYS
    :ivar changing_takes_cu: the most that a server may use of a host that
        changes its work in the midst of a move
    """

    rows: tuple[Row, ...]
    predicted: tuple[float, float]
    hosts: float
    slow: str
    changing_takes_cu: float

    def is_covered(self, row: Row) -> bool:
        low, high = self.predicted
        return low <= row.units <= high

    def table(self) -> str:
        """:returns: all of it, for people"""
        table = prettytable.PrettyTable(_COLUMNS, align='r')
        low, high = self.predicted
        for row in self.rows:
            table.add_row((row.program, row.kind, f'{row.stock:.2f}',
                           f'{row.units:.2f}', f'{low:.2f} to {high:.2f}',
                           'yes' if self.is_covered(row) else 'no',
                           f'{row.to_fast:.2f}', f'{row.to_slow:.2f}',
                           f'{row.takes_cu:.0f}'))
        lines = [str(table), f'fast is {self.hosts:.2f} times as fast as '
                 f'slow by the profiles (slow by {self.slow})']
        for story in STOCK, UNITS, 'to_fast', 'to_slow':
            times = [getattr(row, story) for row in self.rows]
            lines.append(
                f'{story}: median {statistics.median(times):.2f}, from '
                f'{min(times):.2f} to {max(times):.2f}')
        lines.append('1.00 is equally fast on both hosts')
        lines.append(
            f'{_PROMISED_CU} CU were claimed for each corrected server, and '
            f'{_RESERVE_CU} CU reserved on each host; one that changes its '
            'work in the midst of a move takes at most '
            f'{self.changing_takes_cu:.0f}')
        return '\n'.join(lines)

    def write(self, path: str) -> None:
        """Write all of it as JSON."""
        with open(path, 'w', encoding='utf-8') as stream:
            json.dump(dataclasses.asdict(self), stream, indent=2)
            stream.write('\n')


def run(lab: clouds.Lab) -> Comparison:
    """Make the cloud anew, calibrate by the whole set, run all programs.

    :raises LabError: when something of it fails
    """
    lab.down()
    lab.up()
    lab.profiles.calibrate(max_s=_CALIBRATION_S)
    with lab.profiles.paces() as paces:
        profiles.start_paces(paces)
        times = {}
        with lab.cloud() as cloud:
            image = make_image(cloud)
            period_us = config.period_us()
            share = _PROMISED_CU / lab.profiles.pcpu_cu('fast')
            cloud.make_flavor(STOCK, {
                'quota:cpu_quota': str(round(share * period_us)),
                'quota:cpu_period': str(period_us)})
            times[STOCK] = measure(lab, cloud, paces, STOCK, image)
        for one in lab.nodes.values():
            one.correction_reserve_cu = _RESERVE_CU
        lab.deploy()
        with lab.cloud() as cloud:
            cloud.make_flavor(UNITS, {
                policy.UNITS_KEY: str(_PROMISED_CU)})
            times[UNITS] = measure(lab, cloud, paces, UNITS, image)
            cloud.make_flavor(CORRECTED, {
                policy.UNITS_KEY: str(_PROMISED_CU),
                'vqos:work': 'auto'})
            moved = {name: move(lab, cloud, paces, name) for name in PROGRAMS}
            changing_takes_cu = change(lab, cloud)
    return Comparison(
        tuple(Row(name, program.kind, *(
            times[story]['slow'][name] / times[story]['fast'][name]
            for story in (STOCK, UNITS)), *moved[name])
            for name, program in PROGRAMS.items()),
        predicted(lab),
        lab.profiles.pcpu_cu('fast') / lab.profiles.pcpu_cu('slow'),
        slowcpu.chosen(), changing_takes_cu)


def predicted(lab: clouds.Lab) -> tuple[float, float]:
    """:returns: time on slow over that on fast of a server of some kind of
        work, at equal units: the least and the greatest
    """
    errors: dict[str, dict[str, float]] = {}
    for name in lab.hosts:
        profile = lab.profiles.of(name)
        (cpu_class,) = profile.cpu_classes
        errors[name] = {
            score.benchmark: combine.error(score, cpu_class.busy,
                                           profile.reference) or 0.0
            for score in cpu_class.busy.scores
            if profile.reference.benchmark(score.benchmark).weight}
    ratios = [(1 + errors['fast'][kind]) / (1 + errors['slow'][kind])
              for kind in errors['fast']]
    return min(ratios), max(ratios)


def make_image(cloud: client.Cloud, programs: Iterable[str] = PROGRAMS
               ) -> str:
    """:param programs: that run in turn
    :returns: the image of a guest that runs them
    """
    ramdisk = _ramdisk()
    try:
        guest.build_initramfs(
            ramdisk,
            tools=[one.tool for one in PROGRAMS.values() if one.tool],
            contents={f'kinds/{name}': f'{command}\n'.encode()
                      for name, command in (
                          (CHANGING, _CHANGING_COMMAND),
                          *((name, program.command)
                            for name, program in PROGRAMS.items()))})
    except guest.GuestError as error:
        raise process.LabError(str(error)) from error
    return _image_of('kinds', cloud, programs)


def _ramdisk() -> str:
    return os.path.join(paths.data('guest'), 'kinds')


def _image_of(name: str, cloud: client.Cloud,
              programs: Iterable[str]) -> str:
    """:returns: an image of the ramdisk that runs these programs in turn"""
    programs = tuple(programs)
    return cloud.make_image(
        name, guest.find_kernel(), _ramdisk(),
        guest.command_line(programs, events=dict.fromkeys(programs, 1)))


def measure(lab: clouds.Lab, cloud: client.Cloud,
            paces: Mapping[str, pace.Pace], flavor: str, image: str,
            ) -> dict[str, dict[str, float]]:
    """Run all programs on both hosts at once.

    :returns: by host and program, how long one event takes, in seconds, had
        the machine been as fast as when it was calibrated
    """
    times: dict[str, dict[str, float]] = {}
    servers = {host: cloud.boot(f'{flavor}-{host}', flavor, image, host)
               for host in lab.hosts}
    for server in servers.values():
        server.wait_active()
    for host, server in servers.items():
        times[host] = {}
        for name in PROGRAMS:
            speed = watch.measure({server: (lab.hosts[host], name)},
                                  rounds=_ROUNDS)[server]
            times[host][name] = (
                paces[host].between(speed.began_s, speed.ended_s)
                / speed.steady)
            process.say(f'   {flavor} on {host}: {name} takes '
                        f'{times[host][name]:.3f} s, {speed.rounds} rounds; '
                        f'as it was {1 / speed.steady:.3f} s')
    for server in servers.values():
        server.delete()
    return times


def move(lab: clouds.Lab, cloud: client.Cloud,
         paces: Mapping[str, pace.Pace], program: str,
         ) -> tuple[float, float, float]:
    """Run a program in a server that the agent corrects, on slow, on fast and
    on slow again.

    :returns: its time on slow over that on fast, before and after each move,
        and the most CU that it takes of a host
    """
    server = cloud.boot(f'{CORRECTED}-{program}', CORRECTED,
                        _image_of(f'kinds-{program}', cloud, [program]),
                        'slow')
    server.wait_active()
    times, takes_cu = [], []
    for number, host in enumerate(('slow', 'fast', 'slow')):
        if number:
            server.migrate(host)
        began_s = time.monotonic() + _UNSETTLED_S
        time.sleep(_LEARN_S)
        speed = watch.measure({server: (lab.hosts[host], program)},
                              rounds=_CORRECTED_ROUNDS, only_new=True)[server]
        changed = (paces[host].between(speed.began_s, speed.ended_s)
                   / paces[host].between(began_s, speed.ended_s))
        times.append(changed / speed.steady)
        takes_cu.append(_takes_cu(lab, server, host))
        process.say(f'   {CORRECTED} on {host}: {program} takes '
                    f'{times[-1]:.3f} s, {speed.rounds} rounds, and '
                    f'{takes_cu[-1]:.1f} CU of the host; as it was '
                    f'{1 / speed.steady:.3f} s, at {changed:.1%} of the pace '
                    'since it came')
    server.delete()
    return times[0] / times[1], times[2] / times[1], max(takes_cu)


def change(lab: clouds.Lab, cloud: client.Cloud) -> float:
    """Move a server that begins other work meanwhile.

    :returns: the most CU that it takes of a host
    """
    server = cloud.boot(f'{CORRECTED}-{CHANGING}', CORRECTED,
                        _image_of(f'kinds-{CHANGING}', cloud, [CHANGING]),
                        'slow')
    server.wait_active()
    process.wait_until(
        lambda: any(one.uptime_s >= _MOVES_AT_S for one in guest.rounds(
            server.console().splitlines(), CHANGING)),
        2 * _CHANGES_AT_S, 'the server that will change its work')
    takes_cu = [_takes_cu(lab, server, 'slow')]
    server.migrate('fast')
    ends_at = time.monotonic() + 2 * _LEARN_S
    while time.monotonic() < ends_at:
        takes_cu.append(_takes_cu(lab, server, 'fast'))
        time.sleep(1)
    server.delete()
    return max(takes_cu)


def _takes_cu(lab: clouds.Lab, server: client.Server, host: str) -> float:
    """What a server may use of a host, by its cap, in CU of the host."""
    cap = lab.hosts[host].vcpu_cap(server.domain)
    if cap is None:
        raise process.LabError(f'{server.name} has no cap on {host}')
    quota_us, period_us = cap
    return quota_us / period_us * lab.profiles.pcpu_cu(host)
