# SPDX-License-Identifier: Apache-2.0
"""What quantum_scenarios.py found: ratios, medians, and their tables.

Performance is compared within a round, in which all arms had their turn: what
else the machine did meanwhile was about the same for all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import statistics
import typing as ty

#: The arm that all others are compared with.
STOCK = 'stock'
#: The same once more: what its performance differs by is noise.
CONTROL = 'stock again'


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """What of a kind of load is measured.

    :ivar name: for people
    :ivar unit: of a value
    :ivar is_time: whether less is better
    """

    name: str
    unit: str
    is_time: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """What was measured of one arm, once.

    :ivar values: by metric
    :ivar runs_us: mean run length of the vCPUs of each kind
    :ivar share: of the pCPUs' time that the loads had
    """

    scenario: str
    arm: str
    round: int
    values: Mapping[Metric, float]
    runs_us: Mapping[str, float]
    share: float


class Ratio(ty.NamedTuple):
    """Performance of an arm against stock; above 1: better.

    :ivar low: the least of all rounds
    :ivar high: the most
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return (f'{_short(self.median)} '
                f'{_short(self.low)}-{_short(self.high)}')


def _short(ratio: float) -> str:
    return f'{ratio:.2f}' if ratio < 10 else f'{ratio:.0f}'


def ratios(windows: Iterable[Window], scenario: str,
           arm: str) -> Mapping[Metric, Ratio]:
    """How an arm did in a scenario, by metric.

    Rounds in which it or stock had nothing to measure are left out.
    """
    stock = _by_round(windows, scenario, STOCK)
    found: dict[Metric, list[float]] = {}
    for number, window in _by_round(windows, scenario, arm).items():
        if number not in stock:
            continue
        for metric, value in window.values.items():
            base = stock[number].values.get(metric, 0.0)
            if value > 0 and base > 0:
                found.setdefault(metric, []).append(
                    base / value if metric.is_time else value / base)
    return {metric: Ratio(statistics.median(values), min(values), max(values))
            for metric, values in found.items()}


def medians(windows: Iterable[Window], scenario: str,
            arm: str) -> Mapping[Metric, float]:
    """What was measured of an arm in a scenario, by metric."""
    return _medians(window.values for window in _by_round(
        windows, scenario, arm).values())


def runs_us(windows: Iterable[Window], scenario: str,
            arm: str) -> Mapping[str, float]:
    """How long vCPUs of each kind ran at a time."""
    return _medians(window.runs_us for window in _by_round(
        windows, scenario, arm).values())


def share(windows: Iterable[Window], scenario: str) -> float:
    """Of the pCPUs' time that the loads had: the rest was others'."""
    return statistics.median(window.share for window in windows
                             if window.scenario == scenario)


def in_primitives(windows: Sequence[Window],
                  arms: Sequence[str]) -> list[dict[str, ty.Any]]:
    """The same for programs."""
    rows = []
    for scenario in dict.fromkeys(window.scenario for window in windows):
        for arm in arms:
            found = ratios(windows, scenario, arm)
            rows.append({
                'scenario': scenario, 'arm': arm,
                'share': round(share(windows, scenario), 3),
                'mean_run_us': {
                    kind: round(run_us) for kind, run_us in runs_us(
                        windows, scenario, arm).items()},
                'metrics': [{
                    'name': metric.name, 'unit': metric.unit,
                    'median': value,
                    'performance': dict(zip(
                        ('median', 'low', 'high'),
                        (round(figure, 4) for figure in found[metric]),
                        strict=True)) if metric in found else None,
                } for metric, value in medians(
                    windows, scenario, arm).items()]})
    return rows


def print_scenario(windows: Sequence[Window], scenario: str,
                   arms: Sequence[str]) -> None:
    """Print how all arms did, and how long turns were."""
    others = [arm for arm in arms if arm != STOCK]
    by_arm = {arm: ratios(windows, scenario, arm) for arm in others}
    control = by_arm[CONTROL]

    def shown(arm: str, metric: Metric) -> str:
        ratio = by_arm[arm].get(metric)
        if ratio is None:
            return '-'
        is_noise = metric not in control or (
            control[metric].low <= ratio.median <= control[metric].high)
        return f'({ratio})' if is_noise and arm != CONTROL else f'{ratio} '

    print(f'  {"performance":27}{STOCK:>12}    '
          + ''.join(f'{arm:>18}' for arm in others))
    for metric, value in medians(windows, scenario, STOCK).items():
        print(f'  {metric.name:27}{value:12.4g} {metric.unit:3}'
              + ''.join(f'{shown(arm, metric):>18}' for arm in others))
    print(f'  in brackets: within what "{CONTROL}" gave, which is noise')
    found = {arm: runs_us(windows, scenario, arm) for arm in arms}
    print('  how long they ran at a time, ms')
    for kind, stock_us in found[STOCK].items():
        print(f'  {kind:27}{stock_us / 1000:12.2f}    '
              + ''.join(f'{found[arm][kind] / 1000:18.2f}'
                        for arm in others))


def _by_round(windows: Iterable[Window], scenario: str,
              arm: str) -> dict[int, Window]:
    return {window.round: window for window in windows
            if window.scenario == scenario and window.arm == arm}


_Key = ty.TypeVar('_Key')


def _medians(found: Iterable[Mapping[_Key, float]]) -> Mapping[_Key, float]:
    values: dict[_Key, list[float]] = {}
    for one in found:
        for key, value in one.items():
            values.setdefault(key, []).append(value)
    return {key: statistics.median(each) for key, each in values.items()}
