#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether any server is worse off than on the stock kernel, in mixes.

Two pCPUs have servers whose classes gain from slices and pools, beside others
that gain nothing. Each server is a program in groups like libvirt's, see
quantum_scenarios.py:

  web       waits for 200 requests a second, and answers each in 0.1 ms
  plain     the same, without units and class: the agent leaves it alone
  app       waits for 100 requests a second, and answers each in 0.8 ms
  plain app the same, without units and class
  slow      waits for 40 requests a second, and answers each in 4.7 ms
  api       answers 20 requests a second, and has work of its own beside them
  cache     walks a list that the last-level cache holds
  neutral   walks a list that its pCPU's own cache holds
  polluter  walks a list that the last-level cache does not hold
  spin      enters critical sections of a fair lock, with two or three vCPUs

Arms take turns, while the loads run on: first, second, third, then third,
second, first, so that what drifts steadily falls on all alike.

  stock     the kernel's slice for all, and all pCPUs
  named     the agent's code, where flavors name the class of each server
  auto      the same, where all servers are of class auto. This machine counts
            no use of caches: what a PMU would count the loads say. Requests
            and CPU time are counted. Nothing counts waits for locks

Each server's progress is compared with its own on stock in the same half of
the round: above 1 is better. Those of one name are alike, and begin on pCPUs
by lot, so they are judged together; the least of the worst ones is shown. The
intervals of an arm hold together with 95 % (Student's t, of the logarithms of
the ratios). "stock again" is the second measurement of each round against the
first. As root::

  tools/bench/quantum_mixes.py --mixes web-cache app-cache --rounds 5
"""

import argparse
from collections.abc import Mapping, Sequence
import json
import math
import pathlib
import platform
import statistics
import sys
import tempfile
import typing as ty

import lab_host
import quantum_agent
import quantum_results
import quantum_scenarios
import quantum_servers

from nova_vqos.calibration import estimate
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.hypervisor import base
from nova_vqos.quantum import classes
from nova_vqos.quantum import model

#: What no server is to lose.
TOLERANCE = 0.03

Metric = quantum_results.Metric
_CPU_TIME = 'CPU time'


class Load(ty.NamedTuple):
    """A server of a mix.

    :ivar quantum_class: that a flavor names for it; '': none
    :ivar per_second: requests that it is sent
    :ivar options: of the script
    """

    label: str
    kind: model.Kind
    quantum_class: str
    vcpus: int = 1
    per_second: float = 0.0
    options: tuple[tuple[str, int], ...] = ()


_WEB = Load('web', model.Kind.IO, classes.IO, per_second=200.0,
            options=(('waits', 1),))
_PLAIN = _WEB._replace(label='plain', quantum_class='')
_APP = Load('app', model.Kind.IO, classes.IO, per_second=100.0,
            options=(('waits', 1), ('mixes', 500_000)))
_PLAIN_APP = _APP._replace(label='plain app', quantum_class='')
_SLOW = _APP._replace(label='slow', per_second=40.0,
                      options=(('waits', 1), ('mixes', 3_000_000)))
_API = Load('api', model.Kind.IO, classes.IO, per_second=20.0)
_CACHE = Load('cache', model.Kind.CACHE, classes.CACHE)
_NEUTRAL = Load('neutral', model.Kind.NEUTRAL, classes.NEUTRAL)
_POLLUTER = Load('polluter', model.Kind.POLLUTER, classes.NEUTRAL)
_SPIN = Load('spin', model.Kind.SPIN, classes.SPIN, vcpus=2)
_WIDE = Load('wide', model.Kind.SPIN, classes.SPIN, vcpus=3)

MIXES: Mapping[str, Sequence[Load]] = {
    'web-neutral': [_WEB] * 4 + [_NEUTRAL] * 4,
    'web-cache': [_WEB] * 4 + [_CACHE] * 4,
    'plain-cache': [_PLAIN] * 2 + [_CACHE] * 4,
    'app-cache': [_APP] * 3 + [_CACHE] * 3,
    'app-neutral': [_APP] * 4 + [_NEUTRAL] * 4,
    'slow-neutral': [_SLOW] * 3 + [_NEUTRAL] * 4,
    'app-polluter': [_APP] * 3 + [_API] + [_POLLUTER] * 4,
    'app-plain': [_APP] * 2 + [_PLAIN_APP] * 2 + [_NEUTRAL] * 6,
    'api-cache': [_API] * 2 + [_CACHE] * 3 + [_POLLUTER] * 3,
    'odd': [_API] * 2 + [_CACHE] * 3 + [_NEUTRAL] * 2,
    'spin': [_SPIN] + [_CACHE] * 2 + [_WEB] * 2 + [_NEUTRAL] * 2,
    'wide': [_WIDE] + [_CACHE] * 2 + [_WEB] * 2 + [_POLLUTER],
    'all': [_WEB, _APP, _API, _CACHE, _CACHE, _NEUTRAL, _POLLUTER],
}
_STOCK, NAMED, AUTO = 'stock', 'named', 'auto'
_WAYS = (NAMED, AUTO)

Values = Mapping[str, Mapping[Metric, float]]


class Ratio(ty.NamedTuple):
    """Performance of a server against stock, with its interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Whether the server is worse off by more than the tolerance."""
        if self.high < 1 - TOLERANCE:
            return 'WORSE'
        return 'not worse' if self.low >= 1 - TOLERANCE else 'not known'

    def __str__(self) -> str:
        return f'{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})'


def main() -> int:
    """Run the mixes that are asked for, and print what they gave."""
    options = parse()
    lab_host.prepare()
    found = []
    try:
        with quantum_scenarios.tree_of_ours(options.weight) as tree:
            lists = quantum_servers.measure_lists(tree, options.pcpus)
        for mix in options.mixes:
            found.append(run(mix, options, lists))
            if options.format == 'table':
                show(found[-1])
    except (CalibrationError, base.HypervisorError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.format == 'json':
        print(json.dumps({
            'kernel': platform.release(), 'rounds': options.rounds,
            'seconds': options.seconds, 'mixes': found}, indent=1))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--mixes', nargs='+', metavar='NAME', choices=MIXES,
                        default=list(MIXES), help='which ones (default: all)')
    parser.add_argument('--ways', nargs='+', metavar='NAME', choices=_WAYS,
                        default=list(_WAYS),
                        help=f'which ones beside {_STOCK} (default: all)')
    parser.add_argument('--rounds', type=int, default=5,
                        help='two measurements of each arm (default '
                        '%(default)s)')
    parser.add_argument('--seconds', type=float, default=4.0,
                        help='of each measurement (default %(default)s)')
    parser.add_argument('--pause', type=float, default=1.5,
                        help='seconds from the change of arms to the '
                        'measurement (default %(default)s)')
    parser.add_argument('--learn', type=float, default=40.0,
                        help='seconds for the agent to recognise servers, and '
                        'to try pools (default %(default)s)')
    quantum_agent.add_options(parser)
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    options = parser.parse_args()
    options.mixes = list(dict.fromkeys(options.mixes))
    options.ways = [way for way in _WAYS if way in options.ways]
    if options.rounds < 2 or min(options.seconds, options.learn) <= 0 or (
            options.pause < 0):
        parser.error('--rounds must be 2 or more, --seconds and --learn above '
                     '0, --pause 0 or more')
    return options


def run(mix: str, options: argparse.Namespace,
        lists: Mapping[model.Kind, int]) -> dict[str, ty.Any]:
    """Let all arms have their turns, in rounds of there and back."""
    with (quantum_scenarios.tree_of_ours(options.weight) as tree,
          quantum_servers.Servers(tree, len(options.pcpus)) as servers,
          tempfile.TemporaryDirectory(prefix='vqos-bench-') as directory):
        names = {servers.start(
            load.kind, load.vcpus, lists.get(load.kind, 0), label=load.label,
            per_second=load.per_second or 1.0, **dict(load.options)): load
            for load in MIXES[mix]}
        agents = {way: quantum_agent.Agent(
            servers, {name: load.quantum_class if way == NAMED
                      else classes.AUTO for name, load in names.items()
                      if load.quantum_class},
            {name: load.kind for name, load in names.items()},
            options.pcpus, quantum_scenarios.enforced_us(options),
            str(pathlib.Path(directory) / f'{way}.json'))
            for way in options.ways}
        servers.run_before_all()
        stock = {(name, number): quantum_servers.Setting(None, options.pcpus)
                 for name, number, _kind in servers.vcpus}
        for way, agent in agents.items():
            servers.set_up(stock)
            lab_host.say(f'{mix}: the agent learns, {way}')
            servers.measure(0, options.learn, agent.wait)
        arms = [_STOCK, *agents]
        halves: list[dict[str, Values]] = []
        for number in range(options.rounds):
            # No arm is always next to stock.
            order = [_STOCK, *(arms[1:] if number % 2 else arms[:0:-1])]
            for names_of_half in (order, order[::-1]):
                half: dict[str, Values] = {}
                for arm in names_of_half:
                    servers.set_up(stock)
                    if arm in agents:
                        agents[arm].leap()
                        half[arm] = servers.measure(
                            options.pause, options.seconds,
                            agents[arm].wait).each
                    else:
                        half[arm] = servers.measure(
                            options.pause, options.seconds).each
                halves.append(half)
            lab_host.say(f'{mix}: round {number + 1} of {options.rounds}')
        described = {way: agent.described() for way, agent in agents.items()}
        for agent in agents.values():
            agent.close()
    groups: dict[str, list[str]] = {}
    for name, load in names.items():
        groups.setdefault(load.label, []).append(name)
    return {'mix': mix, 'agent': described,
            'rows': rows(halves, options.ways, groups)}


def rows(halves: Sequence[Mapping[str, Values]], ways: Sequence[str],
         groups: Mapping[str, Sequence[str]]) -> list[dict[str, ty.Any]]:
    """What servers did, by metric: those of a label together, and the worst.

    :param groups: the names of servers by their label
    """
    keys = [(label, metric) for label, names in groups.items()
            for metric in halves[0][_STOCK][names[0]]]
    # The intervals of one way hold together.
    judged = sum(metric.name != _CPU_TIME for _label, metric in keys)
    found = []
    for label, metric in keys:
        by_server = {name: {arm: [
            half[arm][name].get(metric, 0.0) for half in halves]
            for arm in (_STOCK, *ways)} for name in groups[label]}
        row: dict[str, ty.Any] = {
            'servers': label, 'metric': metric.name, 'unit': metric.unit,
            'stock': statistics.median(
                value for values in by_server.values()
                for value in values[_STOCK]),
            # Both of a round, which are one after the other or nearly so.
            'noise': ratio_of(metric, [
                (values[_STOCK][::2], values[_STOCK][1::2])
                for values in by_server.values()], judged), 'worst': {}}
        for way in ways:
            row[way] = ratio_of(metric, [
                (values[_STOCK], values[way])
                for values in by_server.values()], judged)
            alone = {name: ratio_of(metric, [(values[_STOCK], values[way])],
                                    judged)
                     for name, values in by_server.items()}
            row['worst'][way] = min(
                ((name, ratio) for name, ratio in alone.items()
                 if ratio is not None), key=lambda each: each[1].mean,
                default=None)
        found.append(row)
    return found


def ratio_of(metric: Metric,
             servers: Sequence[tuple[Sequence[float], Sequence[float]]],
             comparisons: int) -> Ratio | None:
    """Performance of servers that are alike, against that in other windows.

    :param servers: of each of them, what is compared with, and what is: in as
        many windows
    :returns: None: too few are known
    """
    logs = []
    for window in zip(*(zip(*each, strict=True) for each in servers),
                      strict=True):
        known = [math.log(first / second if metric.is_time
                          else second / first)
                 for first, second in window if first > 0 and second > 0]
        if known:
            logs.append(statistics.fmean(known))
    if len(logs) < 3:
        return None
    mean = statistics.fmean(logs)
    half = (estimate.student_t(len(logs) - 1, comparisons)
            * statistics.stdev(logs) / math.sqrt(len(logs)))
    return Ratio(*(math.exp(mean + off) for off in (0.0, -half, half)))


def show(found: Mapping[str, ty.Any]) -> None:
    ways = list(found['agent'])
    print(f'\n{found["mix"]}')
    for way in ways:
        print(f'  {way}')
        for line in found['agent'][way]:
            print(f'    {line}')
    print(f'  {"":22}{"stock":>14}   ' + ''.join(
        f'{name:>36}' for name in ('stock again', *ways)))
    for row in found['rows']:
        texts = [_text(row, name) for name in ('noise', *ways)]
        print(f'  {row["servers"] + " " + row["metric"]:22}'
              f'{row["stock"]:14.4g} {row["unit"]:2}'
              + ''.join(f'{text:>36}' for text in texts))
    for way in ways:
        judged = [row for row in found['rows']
                  if row[way] is not None and row['metric'] != _CPU_TIME]
        worst = min(judged, key=lambda row: row[way].mean)
        name, ratio = worst['worst'][way]
        count = {verdict: sum(row[way].verdict == verdict for row in judged)
                 for verdict in ('WORSE', 'not known', 'not worse')}
        print(f'  {way}: worst is {worst["metric"]} of {worst["servers"]}, '
              f'{worst[way]}, the least of them {name} with {ratio}; '
              + ', '.join(f'{number} {verdict}'
                          for verdict, number in count.items()))
    sys.stdout.flush()


def _text(row: Mapping[str, ty.Any], name: str) -> str:
    ratio = row[name]
    if ratio is None:
        return '-'
    is_judged = name != 'noise' and row['metric'] != _CPU_TIME
    return f'{ratio} {ratio.verdict if is_judged else "":9}'


if __name__ == '__main__':
    sys.exit(main())
