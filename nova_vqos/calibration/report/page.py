# SPDX-License-Identifier: Apache-2.0
"""A page to look at profiles: one HTML file that needs nothing else.

It has no script, loads nothing, and forbids the browser both. Its template
escapes all texts, as anybody may have written a profile.

Importing this needs matplotlib, which is optional, and Jinja2.
"""

from collections.abc import Callable, Sequence

import jinja2

from nova_vqos import cpuset
from nova_vqos import units
from nova_vqos import version
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.report import charts
from nova_vqos.calibration.report import table
from nova_vqos.profile import cpu
from nova_vqos.profile import model

# Characters of a list of pCPUs, but for the one that names all of them.
_PCPUS = 24


def render(found: Sequence[model.Profile],
           progress: Callable[[int, int], None]) -> str:
    """The page of one profile or several.

    The same profiles give the same page, whenever it is made. It is ASCII, so
    that it is right in whatever encoding a file is written.

    :param progress: called after each chart with the number of those drawn,
        and of all
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, '.'), autoescape=True,
        undefined=jinja2.StrictUndefined, finalize=_printable,
        trim_blocks=True, lstrip_blocks=True)
    environment.filters['zip'] = zip
    hosts = [_name(one, found) for one in found]
    try:
        reference.check_comparable(dict(zip(hosts, found, strict=True)))
        obstacle = None
    except CalibrationError as error:
        obstacle = str(error)
    errors = [[_errors(held, one) for one in held.cpu_classes]
              for held in found]
    total = (len(found) > 1 and obstacle is None) + sum(
        2 * len(of_classes) + sum(any(one.values()) for one in of_classes)
        + (len(of_classes) > 1) + (held.quantum is not None)
        for held, of_classes in zip(found, errors, strict=True))
    drawn = 0

    def draw(name: str, *what: object) -> tuple[str, charts.Chart]:
        """:returns: a chart, and an id of its own in the page"""
        nonlocal drawn
        drawn += 1
        identifier = f'chart{drawn}'
        chart = charts.draw(identifier, getattr(charts, name), *what)
        progress(drawn, total)
        return identifier, chart

    made: str = environment.get_template('page.html.j2').render(
        found=found, hosts=hosts, obstacle=obstacle, errors=errors, draw=draw,
        pcpus=_pcpus, cu=_cu, error_bound=combine.error_bound,
        short=charts.short, Row=charts.Row,
        MAX_POINTS=charts.MAX_POINTS, table=table,
        benchmark_rows=_benchmark_rows, format_pcpus=cpuset.format_pcpus,
        version=version.version())
    return made.encode('ascii', 'xmlcharrefreplace').decode()


def _printable(value: object) -> object:
    if isinstance(value, str) and not hasattr(value, '__html__'):
        return charts.printable(value)
    return value


def _name(held: model.Profile, found: Sequence[model.Profile]) -> str:
    """A name that no other profile on the page has."""
    alike = sum(other.host == held.host for other in found)
    return held.host if alike == 1 else f'{held.host} {held.id[:6]}'


def _pcpus(cpu_class: cpu.CpuClass) -> str:
    return charts.short(cpuset.format_pcpus(cpu_class.pcpus), _PCPUS)


def _cu(cpu_class: cpu.CpuClass) -> str:
    return f'{cpu_class.busy.coefficient * units.CU_PER_REFERENCE_PCPU:.2f}'


def _benchmark_rows(held: model.Profile,
                    cpu_class: cpu.CpuClass) -> list[charts.Row]:
    return sorted((
        charts.Row(known.name, alone, busy, bool(known.weight))
        for known, alone, busy in zip(
            held.reference.benchmarks, cpu_class.alone.scores,
            cpu_class.busy.scores, strict=True)), key=lambda row: -row.counts)


def _errors(held: model.Profile,
            cpu_class: cpu.CpuClass) -> dict[str, float]:
    """:returns: by benchmark, of those that there are others to compare with
    """
    found = ((score.benchmark,
              combine.error(score, cpu_class.busy, held.reference))
             for score in cpu_class.busy.scores)
    return {name: round(error, 6) for name, error in found
            if error is not None}
