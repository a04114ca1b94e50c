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

"""A page to look at profiles, see :mod:`nova_vqos.calibration.html_page`."""

from collections.abc import Callable, Iterator, Sequence

from nova_vqos import io_profile
from nova_vqos import profile as profiles
from nova_vqos import quantum_profile
from nova_vqos import units
from nova_vqos import version
from nova_vqos.calibration import charts
from nova_vqos.calibration import drawing
from nova_vqos.calibration import html_page as html
from nova_vqos.calibration import io_table
from nova_vqos.calibration import quantum_charts
from nova_vqos.calibration import reference as references
from nova_vqos.calibration import table
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import table as quantum_table

# Of the columns of table; those before it are texts.
_NUMBERS_FROM = table.COLUMNS.index('weight')
_FORMATS = {'coefficient': '.5f', 'low': '.5f', 'high': '.5f',
            'cu_per_pcpu': '.2f'}
# Characters of a list of pCPUs, but for the one that names all of them.
_PCPUS = 24


def page(found: Sequence[profiles.Profile],
         progress: Callable[[int, int], None]) -> str:
    """The page of one profile or several.

    The same profiles give the same page, whenever it is made. It is ASCII, so
    that it is right in whatever encoding a file is written.

    :param progress: is told after each chart how many there are, and of how
        many
    """
    drawn = _Figures(found, progress)
    body = ''.join(
        [*_beginning(found, drawn),
         *(part for number, held in enumerate(found, 1)
           for part in _section(held, number, drawn, len(found) > 1)),
         '<p class="note">Made by nova_vqos '
         f'{html.text(version.version())}.</p>'])
    return html.document(_heading(found), body)


class _Figures:
    """Draws the page's charts, each with ids of its own."""

    def __init__(self, found: Sequence[profiles.Profile],
                 progress: Callable[[int, int], None]) -> None:
        self._progress = progress
        self._drawn = 0
        self._total = (len(found) > 1) + sum(
            3 * len(held.cpu_classes) + (len(held.cpu_classes) > 1)
            + (held.quantum is not None) for held in found)

    def draw(self, chart: Callable[..., str], *what: object, title: str,
             caption: str) -> str:
        """:param chart: a function of charts, to be called with ``what``"""
        self._drawn += 1
        svg = chart(*what, f'chart{self._drawn}', title)
        self._progress(self._drawn, self._total)
        return (f'<figure><div class="scroll">{svg}</div>'
                f'<figcaption>{html.text(caption)}</figcaption></figure>\n')

    def skip(self) -> None:
        """Count a chart that there is nothing to draw of."""
        self._drawn += 1


def _heading(found: Sequence[profiles.Profile]) -> str:
    return (f'CPU calibration of {found[0].host}' if len(found) == 1
            else f'CPU calibration of {len(found)} hosts')


def _beginning(found: Sequence[profiles.Profile],
               drawn: _Figures) -> Iterator[str]:
    names = ', '.join(dict.fromkeys(held.reference.name for held in found))
    yield f'<h1>{html.text(_heading(found))}</h1>\n'
    yield (
        f'<p>100 CU (CPU units) are the speed of one pCPU of the reference, '
        f'{html.text(names)}, while all of its pCPUs are busy. A coefficient '
        'says how many times as fast as that a pCPU was measured to be, and '
        'the one while all pCPUs are busy is what is sold: 1.2 is a pCPU of '
        '120 CU.</p>\n')
    if len(found) > 1:
        yield from _overview(found, drawn)


def _overview(found: Sequence[profiles.Profile],
              drawn: _Figures) -> Iterator[str]:
    yield '<h2 id="hosts">The hosts</h2>\n'
    try:
        references.check_comparable({_host(held, found): held
                                     for held in found})
    except CalibrationError as error:
        drawn.skip()
        yield f'<p>They cannot be compared: {html.text(str(error))}.</p>\n'
    else:
        yield drawn.draw(
            charts.speeds, [
                charts.Speed(_label(_host(held, found), cpu_class, held),
                             cpu_class)
                for held in found for cpu_class in held.cpu_classes],
            title='Coefficients of the hosts',
            caption='Combined coefficients of equal pCPUs, with their 95 % '
            'intervals. Where intervals overlap, the hosts may be equal: the '
            'command compare says so.')
    yield html.table(
        ('host', 'profile', 'pCPUs', 'CU per pCPU', 'interval',
         "host's capacity in CU"),
        [(None, [
            f'<a href="#host{number}">{html.cell(held.host)}</a>',
            html.cell(held.id), html.cell(_pcpus(one)),
            f'{one.busy.coefficient * units.CU_PER_REFERENCE_PCPU:.2f}',
            f'{one.busy.interval_width:.2%}',
            str(table.capacity_cu(held))])
         for number, held in enumerate(found, 1)
         for one in held.cpu_classes], numbers_from=3)


def _section(held: profiles.Profile, number: int, drawn: _Figures,
             is_one_of_several: bool) -> Iterator[str]:
    yield f'<section id="host{number}">\n'
    if is_one_of_several:
        yield f'<h2>{html.text(held.host)}</h2>\n'
    yield _facts(held)
    if len(held.cpu_classes) > 1:
        yield '<h3>Kinds of pCPUs</h3>\n'
        yield drawn.draw(
            charts.speeds,
            [charts.Speed(f'pCPUs {_pcpus(c)}', c)
             for c in held.cpu_classes],
            title=f'Coefficients of the kinds of pCPUs of {held.host}',
            caption='Combined coefficients of each kind of equal pCPUs, with '
            'their 95 % intervals.')
    for cpu_class in held.cpu_classes:
        yield from _class(held, cpu_class, drawn)
    yield '<h3>The numbers</h3>\n'
    yield _numbers(held)
    if held.io_profile is not None:
        yield '<h3>What I/O costs the kernel</h3>\n'
        yield _io(held.io_profile)
    if held.quantum_profile is not None:
        yield '<h3>Which slice is best</h3>\n'
        yield from _quantum(held.quantum_profile, held.host, drawn)
    yield '<h3>The benchmarks</h3>\n'
    yield _benchmarks(held.reference)
    yield '<div class="pair">\n<div>\n<h3>Fingerprint</h3>\n'
    yield html.mapping(
        'What was measured. The profile holds for nothing else.',
        held.fingerprint)
    yield '</div>\n<div>\n<h3>Provenance</h3>\n'
    yield html.mapping('What was seen while it was measured.',
                       held.provenance)
    yield '</div>\n</div>\n</section>\n'


def _facts(held: profiles.Profile) -> str:
    reference = held.reference
    facts = {
        'Profile': held.id, 'Made': held.created_at,
        'Reference': f'{reference.name}, measured {reference.created_at}'
        + (': this host' if held.is_reference else ''),
        'Measured in': f'the {held.measured_in}',
        'pCPUs': profiles.format_pcpus(held.pcpus),
        'Capacity': f'{table.capacity_cu(held)} CU',
    }
    return '<dl class="facts">\n' + ''.join(
        f'<dt>{html.text(key)}</dt><dd>{html.text(value)}</dd>\n'
        for key, value in facts.items()) + '</dl>\n'


def _class(held: profiles.Profile, cpu_class: profiles.CpuClass,
           drawn: _Figures) -> Iterator[str]:
    reference = held.reference
    pcpus = f'pCPUs {_pcpus(cpu_class)}'
    cu = cpu_class.busy.coefficient * units.CU_PER_REFERENCE_PCPU
    where = f'{pcpus} of {held.host}'
    if len(held.cpu_classes) > 1:
        yield f'<h3>{html.text(pcpus)}: {cu:.2f} CU each</h3>\n'
    yield '<h4>How fast, alone and busy</h4>\n'
    yield drawn.draw(
        charts.coefficients, cpu_class, reference,
        title=f'Coefficients by benchmark, {where}',
        caption='Alone: one pCPU at work; busy: all of them. Whiskers and '
        'bands are 95 % intervals; the bands are those of the combined '
        'coefficients.' + (
            ' One pCPU alone is all of them: both are one measurement.'
            if cpu_class.alone == cpu_class.busy else ''))
    yield '<h4>How the samples scatter</h4>\n'
    yield drawn.draw(
        charts.samples, cpu_class, reference,
        title=f'Samples by benchmark, {where}',
        caption=_told_of_samples(cpu_class))
    yield '<h4>How far from its promise a server is</h4>\n'
    yield _errors(held, cpu_class, where, drawn)


def _errors(held: profiles.Profile, cpu_class: profiles.CpuClass, where: str,
            drawn: _Figures) -> str:
    errors = charts.error_by_benchmark(cpu_class.busy, held.reference)
    if not any(round(error, 6) for error in errors.values()):
        drawn.skip()
        return '<p>' + (
            'By none: these pCPUs are the reference, whose coefficients are '
            'all 1.' if errors else
            'One benchmark cannot tell: it needs another one to be compared '
            'with.') + '</p>\n'
    return drawn.draw(
        charts.errors, errors, held.reference,
        title=f'Error by benchmark, {where}',
        caption='All pCPUs busy. Each kind of work against the coefficient '
        'by all others, as if it were none of them: a server that does '
        'nothing else gets that much more or less than it was promised. The '
        'intervals above say how certain that is.' + (
            '' if len(errors) == len(held.reference.benchmarks) else
            ' The only benchmark that counts has none.'))


def _told_of_samples(cpu_class: profiles.CpuClass) -> str:
    scores = [*cpu_class.alone.scores, *cpu_class.busy.scores]
    told = [
        'Each mark is one round, relative to the median of its benchmark and '
        'state; half of them are in the box.',
        'Outliers are further from it than 3.5 scaled median absolute '
        'deviations, and left out of the coefficients: '
        f'{sum(s.outliers for s in scores)} of '
        f'{sum(len(s.samples) for s in scores)} samples. Triangles at the '
        'edge are beyond it.']
    if any(len(s.samples) > charts.MAX_POINTS for s in scores):
        told.append(
            f'Of more than {charts.MAX_POINTS} samples of a benchmark and '
            'state so many are drawn, evenly chosen; boxes and numbers are '
            'of all.')
    return ' '.join(told)


def _numbers(held: profiles.Profile) -> str:
    weights = {b.name: b.weight for b in held.reference.benchmarks}

    def look(row: Sequence[object]) -> str | None:
        name = row[table.COLUMNS.index('benchmark')]
        if row[_NUMBERS_FROM] == '':
            return 'combined'
        return None if weights[str(name)] else 'apart'

    return html.table(
        [column.replace('_', ' ') for column in table.COLUMNS],
        [(look(row), [
            html.cell(drawing.short(str(cell), _PCPUS) if column == 'pcpus'
                  else format(cell, _FORMATS.get(column, '')))
            for column, cell in zip(table.COLUMNS, row, strict=True)])
         for row in table.rows(held)], numbers_from=_NUMBERS_FROM)


def _io(shown: io_profile.IoProfile) -> str:
    return (
        '<p class="note">In nanoseconds, per request and per byte, beside '
        'what threads of a server are charged for; '
        f'{shown.wake.value:.0f} more for a packet that has to wake who '
        'takes it in. '
        f'Measured {html.text(shown.created_at)}.</p>\n' + html.table(
            [column.replace('_', ' ') for column in io_table.COLUMNS],
            [(None, [html.cell(str(cell)) for cell in row])
             for row in io_table.rows(shown)], numbers_from=2)
        + html.mapping('What was not measured.', shown.unmeasured)
        + html.mapping('What was seen while it was.', shown.provenance))


def _quantum(shown: quantum_profile.QuantumProfile, host: str,
             drawn: _Figures) -> Iterator[str]:
    option = quantum_table.option(shown)
    yield '<p>' + (
        'Nothing to set: no slice was found to be better than what the '
        'kernel does.' if option is None else
        f'To set: <code>{html.text(option)}</code>.') + '</p>\n'
    yield drawn.draw(
        quantum_charts.curves, shown,
        title=f'Cost by slice, {host}',
        caption='What each kind of work cost beside one and three others on '
        "a pCPU, relative to the kernel's default (stock) with as many: less "
        'is better. Bars reach from the least to the most of all rounds. Of '
        'io the time until 95 % of requests were answered, of spin the CPU '
        'time for a critical section, of the others that for a node of a '
        f'linked list. Measured {shown.created_at}.')
    yield html.table(
        ('kind', 'result', 'closer is equal'),
        [(None, [html.cell(curve.kind),
                 html.cell(quantum_table.verdict(curve)),
                 f'{curve.margin:.1%}']) for curve in shown.curves],
        numbers_from=2)
    yield '<h4>The numbers by slice</h4>\n'
    yield html.table(
        [column.replace('_', ' ') for column in quantum_table.COLUMNS],
        [(None, [html.cell(str(cell)) for cell in row])
         for row in quantum_table.rows(shown)], numbers_from=1)
    yield html.mapping('What was not measured.', shown.unmeasured)
    yield html.mapping('What was seen while it was.', shown.provenance)


def _benchmarks(reference: profiles.Reference) -> str:
    return html.table(
        ('name', 'kind of work', 'what is run, and its build (SHA-256)',
         'unit', 'weight', "reference's score", '95 % interval'),
        [(None if known.weight else 'apart', [
            html.cell(known.name), html.cell(known.kind),
            f'{html.cell(known.identity)} '
            f'<span class="hash">{html.cell(known.program_sha256)}</span>',
            html.cell(known.unit), f'{known.weight:g}',
            f'{known.score:.6g}',
            f'\N{PLUS-MINUS SIGN}{known.half_width:.2%}'])
         for known in reference.benchmarks], numbers_from=4)


def _host(held: profiles.Profile,
          found: Sequence[profiles.Profile]) -> str:
    """A name that is no other's of those on the page."""
    alike = sum(other.host == held.host for other in found)
    return held.host if alike == 1 else f'{held.host} {held.id[:6]}'


def _label(host: str, cpu_class: profiles.CpuClass,
           held: profiles.Profile) -> str:
    if len(held.cpu_classes) == 1:
        return host
    return f'{host} {_pcpus(cpu_class)}'


def _pcpus(cpu_class: profiles.CpuClass) -> str:
    return drawing.short(profiles.format_pcpus(cpu_class.pcpus), _PCPUS)


