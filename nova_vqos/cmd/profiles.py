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

"""nova-vqos-calibrate: what can be done with profiles that are there."""

import argparse
import os
import typing as ty

from cliff import command
from cliff import lister

from nova_vqos import io_profile
from nova_vqos import profile
from nova_vqos import quantum_profile
from nova_vqos import units
from nova_vqos.calibration import compare
from nova_vqos.calibration import io_table
from nova_vqos.calibration import reference as references
from nova_vqos.calibration import table
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import table as quantum_table
from nova_vqos.cmd import arguments


class ShowProfile(lister.Lister):
    """Show a profile that was written before."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        arguments.add_profile(parser, 'the file')
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            '--io', action='store_true',
            help="what I/O costs the host's kernel, instead of how fast its "
                 'pCPUs are')
        what.add_argument(
            '--quantum', action='store_true',
            help='what kinds of work cost at which slice, instead of how '
                 'fast the pCPUs are')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        held = profile.load(parsed_args.profile)
        if parsed_args.quantum:
            if held.quantum_profile is None:
                raise CalibrationError(
                    f'{parsed_args.profile} has no slices: run '
                    'nova-vqos-calibrate quantum')
            return tell_quantum(self.app.LOG, held.quantum_profile)
        if not parsed_args.io:
            return tell(self.app.LOG, held)
        if held.io_profile is None:
            raise CalibrationError(
                f'{parsed_args.profile} has no costs of I/O: run '
                'nova-vqos-calibrate io')
        return tell_io(self.app.LOG, held.io_profile)


class CompareProfiles(lister.Lister):
    """Say which hosts are equal, and may share one profile.

    Equal are those whose coefficients, alone and busy, differ by no more than
    their 95 % intervals leave open, and what is tolerated.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'profiles', nargs='+', metavar='PROFILE',
            help='profiles of two hosts or more, measured against the same '
                 'reference')
        parser.add_argument(
            '--tolerance', type=arguments.share, metavar='SHARE',
            default=compare.TOLERANCE,
            help='how much a host may differ from itself from one '
                 'measurement to the next, beyond what the intervals leave '
                 'open, default: %(default)s')
        parser.add_argument(
            '--max-interval', type=arguments.share, metavar='SHARE',
            default=compare.MAX_INTERVAL,
            help='refuse profiles that are less certain than this, '
                 'default: %(default)s')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        members = compare.compare(
            {path: profile.load(path) for path in parsed_args.profiles},
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
             profile.format_pcpus(one.pcpus),
             round(one.busy.coefficient * units.CU_PER_REFERENCE_PCPU, 2),
             f'{one.busy.interval_width:.2%}', f'{member.difference:+.2%}',
             member.shared)
            for member in members for one in member.profile.cpu_classes]


class ExportReference(command.Command):
    """Write the reference of a profile as a document of its own.

    For other clouds and later years: name, benchmark, score and its
    uncertainty, which CPU it was, and who vouches for it. The option
    --against of the command cpu takes it.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        arguments.add_profile(parser, "the reference host's own")
        parser.add_argument(
            '--signed-off-by', metavar='NAME', required=True,
            type=arguments.name,
            help='who vouches for it, such as "Jane Doe <jane@example.org>"')
        parser.add_argument(
            '--output', metavar='FILE', required=True,
            help='where to write the document')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        arguments.check_writable(parsed_args.output)
        held = profile.load(parsed_args.profile)
        profile.write(references.document(held, parsed_args.signed_off_by),
                      parsed_args.output)
        self.app.LOG.info('Wrote reference %s to %s', held.reference.name,
                          parsed_args.output)


class RescaleProfiles(lister.Lister):
    """Express profiles in units of another reference, as if measured so.

    Speeds stay what they are, and so do scores: it is the unit that changes,
    and with it what the units of flavors mean.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'profiles', nargs='+', metavar='PROFILE',
            help='profiles to convert, all measured against one reference')
        parser.add_argument(
            '--onto', metavar='PROFILE', required=True,
            help='profile of the host that becomes the reference, measured '
                 'against the same one as the others')
        parser.add_argument(
            '--name', type=arguments.name, required=True,
            help='what to call the new reference')
        parser.add_argument(
            '--output-dir', metavar='DIRECTORY', required=True,
            help='where to write the converted profiles, under the names '
                 'that they have')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        onto = profile.load(parsed_args.onto)
        rows = []
        for path, output in _outputs(parsed_args.profiles,
                                     parsed_args.output_dir):
            old = profile.load(path)
            rows.append((old, references.rescale(old, onto, parsed_args.name),
                         output))
        # All of them can be converted: only now is anything written.
        for _old, new, output in rows:
            profile.store(new, output)
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
            (new.host, profile.format_pcpus(before.pcpus), *(
                round(one.busy.coefficient * units.CU_PER_REFERENCE_PCPU, 2)
                for one in (before, after)),
             f'{after.busy.interval_width:.2%}', output)
            for old, new, output in rows
            for before, after in zip(old.cpu_classes, new.cpu_classes,
                                     strict=True)]


def _outputs(paths: list[str], directory: str) -> list[tuple[str, str]]:
    """Where each converted profile goes.

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


def tell(log: ty.Any, shown: profile.Profile) -> ty.Any:
    """Say in words what a profile says; its numbers as a table.

    :returns: the table's columns and rows, as cliff's Lister has them
    """
    log.info(
        'Profile %s of host %s, made %s: pCPUs %s, measured in the %s. '
        '100 CU are one pCPU of %s. The host has %d CU.',
        shown.id, shown.host, shown.created_at,
        profile.format_pcpus(shown.pcpus), shown.measured_in,
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
    return table.COLUMNS, list(table.rows(shown))


def tell_io(log: ty.Any, shown: io_profile.IoProfile) -> ty.Any:
    """Say in words what was not measured; what was, as a table.

    :returns: the table's columns and rows, as cliff's Lister has them
    """
    log.info('Costs of I/O, measured %s', shown.created_at)
    log.info('  %s ns (%s to %s) more for a packet that has to wake who takes '
             'it in', *(f'{value:.0f}' for value in (
                 shown.wake.value, shown.wake.low, shown.wake.high)))
    for what, why in shown.unmeasured.items():
        log.info('  Not measured: %s: %s', what, why)
    return io_table.COLUMNS, list(io_table.rows(shown))


def tell_quantum(log: ty.Any,
                 shown: quantum_profile.QuantumProfile) -> ty.Any:
    """Say in words what is recommended; what was measured, as a table.

    :returns: the table's columns and rows, as cliff's Lister has them
    """
    log.info('Slices, measured %s on pCPU %s', shown.created_at,
             shown.provenance.get('pcpus', 'unknown'))
    for curve in shown.curves:
        log.info('  %s: %s (closer than %.1f %% is equal)', curve.kind,
                 quantum_table.verdict(curve), 100 * curve.margin)
    for what, why in shown.unmeasured.items():
        log.info('  Not measured: %s: %s', what, why)
    option = quantum_table.option(shown)
    if option is None:
        log.info('Nothing to set: no slice was found to be better')
    else:
        log.info('To set in [vqos] of the configuration of compute service '
                 'and agent, and in hook.conf: %s', option)
    return quantum_table.COLUMNS, list(quantum_table.rows(shown))
