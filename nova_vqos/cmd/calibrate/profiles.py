# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate: commands that use profiles."""

import argparse
import os
import typing as ty

from cliff import lister

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos import units
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import compare
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.report import table
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.profile import model
from nova_vqos.profile import quantum


class ShowProfile(options.OptionsCommand, lister.Lister):
    """Show a profile."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_profile(parser, 'the file')
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            '--io', action='store_true',
            help="show the costs of I/O for the host's kernel, instead of the "
                 'speed of its pCPUs')
        what.add_argument(
            '--quantum', action='store_true',
            help='show the cost of each kind of work by slice, instead of the '
                 'speed of the pCPUs')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        held = document.load(parsed_args.profile)
        if parsed_args.quantum:
            if held.quantum_profile is None:
                raise CalibrationError(
                    f'{parsed_args.profile} has no slices: run '
                    'nova-vqos-calibrate quantum')
            return describe_quantum(self.app.LOG, held.quantum_profile)
        if not parsed_args.io:
            return describe_cpu(self.app.LOG, held)
        if held.io_profile is None:
            raise CalibrationError(
                f'{parsed_args.profile} has no costs of I/O: run '
                'nova-vqos-calibrate io')
        return describe_io(self.app.LOG, held.io_profile)


class CompareProfiles(options.OptionsCommand, lister.Lister):
    """Find the hosts that are equal, and may share one profile.

    Two hosts are equal where their coefficients, alone and busy, differ by no
    more than their 95 % intervals and the tolerance.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'profiles', nargs='+', metavar='PROFILE',
            help='profiles of two hosts or more, measured against the same '
                 'reference')
        parser.add_argument(
            '--tolerance', type=arguments.share, metavar='SHARE',
            default=compare.TOLERANCE,
            help='how much two measurements of one host may differ beyond '
                 'their intervals, default: %(default)s')
        parser.add_argument(
            '--max-interval', type=arguments.share, metavar='SHARE',
            default=compare.MAX_INTERVAL,
            help='refuse profiles with a wider interval, relative to the '
                 'coefficient, default: %(default)s')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        members = compare.compare(
            {path: document.load(path) for path in parsed_args.profiles},
            tolerance=parsed_args.tolerance,
            max_interval=parsed_args.max_interval)
        for shared in members:
            if shared.shared:
                self.app.LOG.info(
                    'Equal as far as was measured are %s: they may share %s',
                    ', '.join(other.profile.host for other in members
                              if other.group == shared.group
                              and not other.obstacles), shared.path)
        for member in members:
            if member.obstacles:
                self.app.LOG.warning(
                    'Warning: %s cannot use the profile of its group, which '
                    'would be stale there: it has another %s',
                    member.profile.host, ' and '.join(member.obstacles))
        return ('group', 'profile', 'host', 'pcpus', 'cu_per_pcpu',
                'interval', 'difference', 'share'), [
            (member.group, member.path, member.profile.host,
             cpuset.format_pcpus(one.pcpus),
             round(one.busy.coefficient * units.CU_PER_REFERENCE_PCPU, 2),
             f'{one.busy.interval_width:.2%}', f'{member.difference:+.2%}',
             member.shared)
            for member in members for one in member.profile.cpu_classes]


class ExportReference(options.OptionsCommand):
    """Write the reference of a profile as a document of its own.

    The document is for other clouds and later years: it has name, benchmarks,
    scores and their uncertainty, the CPU, and who vouches for it. The option
    --against of the command cpu reads it.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_profile(parser, "the reference host's own")
        parser.add_argument(
            '--signed-off-by', metavar='NAME', required=True,
            type=arguments.name,
            help='who vouches for it, such as "Jane Doe <jane@example.org>"')
        parser.add_argument(
            '--output', metavar='FILE', required=True,
            help='file to write the document to')

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        arguments.check_writable(parsed_args.output)
        held = document.load(parsed_args.profile)
        files.write(reference.export(held, parsed_args.signed_off_by),
                    parsed_args.output)
        self.app.LOG.info('Wrote reference %s to %s', held.reference.name,
                          parsed_args.output)


class RescaleProfiles(options.OptionsCommand, lister.Lister):
    """Express profiles in units of another reference.

    Speeds and scores stay the same. The unit changes, and with it the meaning
    of the units of flavors.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'profiles', nargs='+', metavar='PROFILE',
            help='profiles to convert, all measured against one reference')
        parser.add_argument(
            '--onto', metavar='PROFILE', required=True,
            help='profile of the host that becomes the reference, measured '
                 'against the same one as the others')
        parser.add_argument(
            '--name', type=arguments.name, required=True,
            help='name of the new reference')
        parser.add_argument(
            '--output-dir', metavar='DIRECTORY', required=True,
            help='directory to write the converted profiles to, under their '
                 'names')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        onto = document.load(parsed_args.onto)
        rows = []
        for path, output in _outputs(parsed_args.profiles,
                                     parsed_args.output_dir):
            old = document.load(path)
            rows.append((old, reference.rescale(old, onto, parsed_args.name),
                         output))
        # All of them can be converted: only now is anything written.
        for _old, new, output in rows:
            document.store(new, output)
        factor = 1 / onto.cpu_classes[0].busy.coefficient
        self.app.LOG.warning(
            '100 CU of %s are %.5g CU of %s: flavors need %.5g times their '
            'units. Old and new units must not meet on a host: servers keep '
            'the units that they have, and would run %.5g times as fast as '
            'they should where the converted profile is. Drain each host '
            'before it gets that; see the guide to calibration.',
            onto.reference.name, 100 * factor, parsed_args.name, factor,
            1 / factor)
        return ('host', 'pcpus', 'cu_before', 'cu_after', 'interval',
                'profile'), [
            (new.host, cpuset.format_pcpus(before.pcpus), *(
                round(one.busy.coefficient * units.CU_PER_REFERENCE_PCPU, 2)
                for one in (before, after)),
             f'{after.busy.interval_width:.2%}', output)
            for old, new, output in rows
            for before, after in zip(old.cpu_classes, new.cpu_classes,
                                     strict=True)]


def _outputs(paths: list[str], directory: str) -> list[tuple[str, str]]:
    """The path of each converted profile, beside that of its source.

    :raises CalibrationError: when two would be one, or one its own source
    """
    outputs: dict[str, str] = {}
    for path in paths:
        output = os.path.join(directory, os.path.basename(path))
        if output in outputs:
            raise CalibrationError(
                f'{outputs[output]} and {path} would both be written to '
                f'{output}: convert them one by one')
        if os.path.realpath(output) == os.path.realpath(path):
            raise CalibrationError(
                f'{path} would be replaced: give another --output-dir')
        arguments.check_writable(output, '--output-dir')
        outputs[output] = path
    return [(path, output) for output, path in outputs.items()]


def describe_cpu(log: ty.Any, shown: model.Profile) -> ty.Any:
    """Log what a profile is of; its numbers are a table.

    :returns: the table's columns and rows, as cliff's Lister has them
    """
    log.info(
        'Profile %s of host %s, made %s: pCPUs %s, measured in the %s. '
        '100 CU are one pCPU of %s. The host has %d CU.',
        shown.id, shown.host, shown.created_at,
        cpuset.format_pcpus(shown.pcpus), shown.measured_in,
        shown.reference.name, table.capacity_cu(shown))
    for known in shown.reference.benchmarks:
        log.info('  %s (%s): %s, of which %s does %.5g %s', known.name,
                 known.kind, known.identity, shown.reference.name,
                 known.score, known.unit)
    log.info('Costs of I/O: %s', 'not measured' if shown.io_profile is None
             else f'measured {shown.io_profile.created_at}, see show --io')
    log.info('Slices: %s', 'not measured' if shown.quantum_profile is None
             else f'measured {shown.quantum_profile.created_at}, see show '
             '--quantum')
    return table.CPU_COLUMNS, list(table.cpu_rows(shown))


def describe_io(log: ty.Any, shown: io.IoProfile) -> ty.Any:
    """Log what was not measured; what was measured is a table.

    :returns: the table's columns and rows, as cliff's Lister has them
    """
    log.info('Costs of I/O, measured %s', shown.created_at)
    for what, why in shown.unmeasured.items():
        log.info('  Not measured: %s: %s', what, why)
    return table.IO_COLUMNS, list(table.io_rows(shown))


def describe_quantum(log: ty.Any, shown: quantum.QuantumProfile) -> ty.Any:
    """Log what is recommended; what was measured is a table.

    :returns: the table's columns and rows, as cliff's Lister has them
    """
    log.info('Slices, measured %s on pCPU %s', shown.created_at,
             shown.provenance.get('pcpus', 'unknown'))
    for curve in shown.curves:
        log.info('  %s: %s (closer than %.1f %% is equal)', curve.kind,
                 table.quantum_verdict(curve), 100 * curve.margin)
    for what, why in shown.unmeasured.items():
        log.info('  Not measured: %s: %s', what, why)
    option = table.quantum_option(shown)
    if option is None:
        log.info('Nothing to set: no slice was found to be better')
    else:
        log.info('To set in [vqos] of the configuration of compute service '
                 'and agent, and in hook.conf: %s', option)
    return table.QUANTUM_COLUMNS, list(table.quantum_rows(shown))
