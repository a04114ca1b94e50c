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

"""nova-vqos-calibrate quantum: find the best slice for each kind of work."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos import profile
from nova_vqos import quantum_profile
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import measure
from nova_vqos.calibration.quantum import rounds
from nova_vqos.cmd import arguments
from nova_vqos.cmd import io as io_command
from nova_vqos.cmd import profiles
from nova_vqos.quantum import classes


class CalibrateQuantum(lister.Lister):
    """Measure which slice suits which kind of work, into the host's profile.

    Real work of each kind shares a pCPU with 1 and 3 others, at several
    slices and at the kernel's default. It runs in a cgroup that is idle as a
    whole, on pCPUs that nobody uses. Ends within 5 minutes by default. Needs
    root, Linux 6.12 and sysbench.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        arguments.add_profile(
            parser, 'the file, written by the command cpu on this host')
        parser.add_argument(
            '--kind', choices=tuple(quantum_profile.CLASSES),
            action='append', default=[],
            help='a kind of work to measure; again for others; default: all. '
                 'What the profile has of other kinds is left out then')
        parser.add_argument(
            '--slice', metavar='MS', type=slice_ms, action='append',
            default=[],
            help='a slice to measure, in ms, beside the default of the '
                 'kernel; again for others; default: '
                 + ', '.join(map(str, measure.SLICES_MS)))
        parser.add_argument(
            '--rounds', type=max_rounds, default=rounds.Effort().max_rounds,
            help='at most so many rounds of everything; at least '
                 f'{rounds.LEAST_ROUNDS}, default: %(default)s')
        parser.add_argument(
            '--max-seconds', type=arguments.seconds, metavar='SECONDS',
            default=rounds.Effort().max_s,
            help='time for all of it; refused where it is too little for '
                 f'{rounds.LEAST_ROUNDS} rounds, default: %(default)s')
        parser.add_argument(
            '--pcpus', metavar='LIST',
            help='pCPUs to choose an idle one from, two for spin, such as '
                 '2-31; default: those of the profile')
        parser.add_argument(
            '--beside-guests', action='store_true',
            help='measure even where guests or others are at work on these '
                 'pCPUs: what they leave is all that is measured in')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        path = parsed_args.profile
        held = profile.load(path)
        arguments.check_writable(path, 'another PROFILE')
        io_command.check_fresh(held)
        default = measure.Setting(frozenset())
        setting = measure.Setting(
            _pcpus(held, parsed_args.pcpus),
            kinds=tuple(dict.fromkeys(parsed_args.kind)) or default.kinds,
            slices_us=tuple(sorted(set(parsed_args.slice)))
            or default.slices_us,
            beside_guests=parsed_args.beside_guests)
        result = measure.calibrate(setting, rounds.Effort(
            parsed_args.rounds, parsed_args.max_seconds))
        if profile.load(path).id != held.id:
            raise CalibrationError(
                f'{path} was written by somebody else meanwhile: measure '
                'again')
        written = held._replace(
            quantum=quantum_profile.document(result.quantum))
        profile.store(written, path)
        self.app.LOG.info('Wrote profile %s to %s', written.id, path)
        for warning in result.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return profiles.tell_quantum(self.app.LOG, result.quantum)


def slice_ms(text: str) -> int:
    """:returns: in microseconds"""
    expected = (f'a slice from {classes.MIN_SLICE_US / 1000:g} to '
                f'{classes.MAX_SLICE_US / 1000:g} ms')
    found = round(1000 * arguments.number(
        text, classes.MAX_SLICE_US / 1000, expected))
    if found < classes.MIN_SLICE_US:
        raise argparse.ArgumentTypeError(f'{text!r} is not {expected}')
    return found


def max_rounds(text: str) -> int:
    least, most = rounds.LEAST_ROUNDS, quantum_profile.MAX_ROUNDS
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number of rounds from {least} to {most}')
    return int(text)


def _pcpus(held: profile.Profile, text: str | None) -> frozenset[int]:
    """
    :raises CalibrationError: when there are none, or not in the profile
    """
    chosen = host_cpus.choose(text)
    if text is None:
        chosen &= held.pcpus
    if not chosen or not chosen <= held.pcpus:
        raise CalibrationError(
            f'--pcpus {profile.format_pcpus(chosen) or "none"}: the profile '
            f'has {profile.format_pcpus(held.pcpus)}, slices are measured on '
            'pCPUs of servers')
    return chosen
