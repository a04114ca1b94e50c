# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate add-kind: measure one more kind of work."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos import cpuset
from nova_vqos import units
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import command
from nova_vqos.calibration.cpu import drift
from nova_vqos.calibration.cpu import kind
from nova_vqos.calibration.cpu import measure
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.run import Effort
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.cmd.calibrate import part
from nova_vqos.profile import document
from nova_vqos.profile import model

_COLUMNS = ('pcpus', 'state', 'benchmark', 'weight', 'cu_per_pcpu',
            'interval', 'rounds', 'drift')


class AddKind(options.OptionsCommand, lister.Lister):
    """Measure one more kind of work, and add it to this host's profile.

    Flavors may then have it in vqos:work. The other kinds stay as they are,
    and so does the coefficient of all kinds, unless the new one has a weight.
    One benchmark of the profile is measured beside it, the anchor: if the host
    is not as fast as its profile says, the kind is refused. First add the kind
    on the reference host, then on each host with --against and the profile of
    the reference.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'name', metavar='NAME',
            help='name of the kind of work; without --command, that of an '
                 'installed benchmark')
        arguments.add_profile(
            parser, 'the file, written by the command cpu on this host')
        arguments.add_verification(parser)
        parser.add_argument(
            '--command', metavar='COMMAND',
            help=f'your own program: a command with {command.EVENTS} in it, '
                 'which does that many equal pieces of work on one thread '
                 'and ends; no shell runs it; give the same one on each host')
        parser.add_argument(
            '--against', metavar='FILE',
            help='on each host but the reference: the document of the '
                 'reference or the profile of any host, with this kind')
        parser.add_argument(
            '--weight', metavar='WEIGHT',
            help='on the reference host: weight of the kind in the '
                 'coefficient of all kinds; above 0 it changes the units of '
                 'every host; default: 0, or that of the kind that is '
                 'replaced')
        parser.add_argument(
            '--replace', action='store_true',
            help='replace a kind of this name in the profile')
        parser.add_argument(
            '--output-differs', action='store_true',
            help='accept a program that writes something else each time it '
                 'runs, such as times')
        parser.add_argument(
            '--anchor', metavar='NAME[=COMMAND]',
            help='benchmark with a weight to measure beside the new one; '
                 'default: the one that the profile is most certain of, of '
                 'those that are installed')
        parser.add_argument(
            '--tolerance', type=arguments.share, metavar='SHARE',
            default=kind.TOLERANCE,
            help='largest drift of the anchor that is tolerated, beyond what '
                 'chance leaves open, default: %(default)s')
        parser.add_argument(
            '--kernel', metavar='PATH',
            help='kernel of the guests, for a profile that was measured in '
                 'guests; default: as of the command cpu')
        cpu.add_effort(parser, measure.EFFORT)
        cpu.add_max_interval(parser)
        parser.add_argument(
            '--widest-interval', type=arguments.width, metavar='SHARE',
            default=measure.WIDEST_INTERVAL,
            help="refuse a kind whose 95%% confidence interval stays wider "
                 'than this with all pCPUs busy, relative to the score, '
                 'default: %(default)s')
        arguments.add_beside_guests(parser)
        parser.add_argument(
            '--restart', action='store_true',
            help='begin anew where an earlier run was interrupted')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        path, name = parsed_args.profile, parsed_args.name
        commands = _commands(parsed_args)
        held = document.load(path)
        arguments.check_writable(path, 'another PROFILE')
        part.check_fresh(held, parsed_args.verification)
        addition = kind.plan(
            held, name, commands=commands,
            against=(reference.load(parsed_args.against)
                     if parsed_args.against else None),
            weight=(None if parsed_args.weight is None else
                    benchmark.parse_weight(parsed_args.weight, '--weight')),
            replace=parsed_args.replace)
        anchor = kind.choose_anchor(
            addition, (parsed_args.anchor or '').partition('=')[0] or None,
            commands)
        if name in commands and not parsed_args.output_differs:
            kind.check_output(addition.member)
        calibration = self._calibration(addition, anchor, parsed_args)
        try:
            added = kind.add(
                addition, anchor, calibration,
                tolerance=parsed_args.tolerance,
                widest_interval=parsed_args.widest_interval)
        except measure.UnfitRoundsError:
            # The same rounds would be refused again.
            calibration.remove_record()
            raise
        if document.load(path).id != held.id:
            raise CalibrationError(
                f'another program changed {path} meanwhile: add it again')
        document.store(added.profile, path)
        calibration.remove_record()
        self.app.LOG.info('Wrote profile %s with %s to %s', added.profile.id,
                          name, path)
        for warning in calibration.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        if addition.changes_mean:
            self.app.LOG.warning(
                'Warning: the coefficient of all kinds has changed, and so '
                'has the meaning of CPU units. Add %s to the profile of each '
                'host before servers of one flavor run on hosts with and '
                'without it', name)
        return _COLUMNS, list(_rows(added, addition.member))

    def _calibration(self, addition: kind.Addition, anchor: benchmark.Member,
                     parsed_args: argparse.Namespace) -> measure.Calibration:
        held = addition.held
        effort = Effort(parsed_args.rounds, parsed_args.max_seconds,
                        parsed_args.max_interval)
        # As if it counted: servers are promised its speed.
        members = (anchor, addition.member._replace(weight=1.0))
        setting = cpu.setting_of(self.app.LOG, held, members, effort,
                                 kernel=parsed_args.kernel,
                                 beside_guests=parsed_args.beside_guests)
        return measure.Calibration(
            members, setting, against=kind.yardstick(addition, anchor),
            effort=effort,
            record_path=f'{parsed_args.profile}.{parsed_args.name}.partial',
            restart=parsed_args.restart,
            classes=drift.classes(held, host_cpus.classes(
                setting.pcpus, setting.sysroot)))


def _commands(parsed_args: argparse.Namespace,
              ) -> dict[str, benchmark.Benchmark]:
    """The operator's own benchmarks, by name.

    :raises CalibrationError: when one is none
    """
    texts = []
    if parsed_args.command is not None:
        texts.append(f'{parsed_args.name}={parsed_args.command}')
    elif parsed_args.name not in benchmark.names():
        raise CalibrationError(
            f'{parsed_args.name!r} is no installed benchmark, which are '
            f'{", ".join(benchmark.names())}: give --command')
    if '=' in (parsed_args.anchor or ''):
        texts.append(parsed_args.anchor)
    return dict(map(command.parse, texts))


def _rows(added: kind.Added, member: benchmark.Member
          ) -> ty.Iterator[tuple[object, ...]]:
    """The new kind, and its anchor, with _COLUMNS."""
    for one in added.profile.cpu_classes:
        for state, measured in (('alone', one.alone), ('busy', one.busy)):
            yield _row(one.pcpus, state, measured.score(member.name),
                       added.profile, '')
    for found in added.anchors:
        yield _row(found.pcpus, 'busy', found.measured, added.profile,
                   f'{found.drift:+.2%}')


def _row(pcpus: frozenset[int], state: str, score: ty.Any,
         profile: model.Profile, off_by: str) -> tuple[object, ...]:
    return (cpuset.format_pcpus(pcpus), state, score.benchmark,
            f'{profile.reference.benchmark(score.benchmark).weight:g}',
            round(score.coefficient * units.CU_PER_REFERENCE_PCPU, 2),
            f'{score.interval_width:.2%}', len(score.samples), off_by)

