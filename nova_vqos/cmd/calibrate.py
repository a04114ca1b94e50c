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

"""nova-vqos-calibrate: measure this host, and write its profile."""

import argparse
from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import typing as ty

from cliff import app
from cliff import commandmanager
from cliff import lister

from nova_vqos import guest
from nova_vqos import profile
from nova_vqos import units
from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import compare
from nova_vqos.calibration import cpu
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import in_guest
from nova_vqos.calibration import runner as runners

_COLUMNS = ('pcpus', 'state', 'coefficient', 'low', 'high', 'interval',
            'rounds', 'cu_per_pcpu')


class CalibrateCpu(lister.Lister):
    """Measure this host's CPUs and write its profile.

    Measured is real work per second of CPU time, with one pCPU of each kind
    busy alone and with all of them busy at once; the latter is what counts
    for capacity and caps. Ends within about 90 seconds by default.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        against = parser.add_mutually_exclusive_group(required=True)
        against.add_argument(
            '--reference', metavar='NAME',
            help='make this host the reference, under this name: each of its '
                 'pCPUs has 100 CU from now on')
        against.add_argument(
            '--against', metavar='FILE',
            help='measure against the reference in this profile, copied from '
                 'the reference host or any other that was measured against '
                 'it')
        parser.add_argument(
            '--in-guest', action='store_true',
            help='measure in guests of this host\'s emulator, one for each '
                 'pCPU, rather than on the host itself')
        parser.add_argument(
            '--emulator', metavar='PATH',
            help='emulator of the guests, default: the first of '
                 + ', '.join(in_guest.EMULATORS))
        parser.add_argument(
            '--virt-type', choices=('kvm', 'qemu'),
            help="Nova's [libvirt] virt_type, default: kvm where the CPU has "
                 'it')
        parser.add_argument(
            '--kernel', metavar='PATH',
            help='kernel of the guests, default: the newest in /boot, else '
                 "the distribution's for guests, fetched but not installed")
        parser.add_argument(
            '--rounds', type=_rounds, default=cpu.Effort().max_rounds,
            help='at most so many rounds of half a second for each pCPU, '
                 'alone and busy; at least 4, default: %(default)s')
        parser.add_argument(
            '--max-interval', type=_share, metavar='SHARE',
            default=cpu.Effort().max_interval,
            help='stop when the 95%% confidence interval is narrower than '
                 'this, relative to the score, default: %(default)s')
        parser.add_argument(
            '--max-seconds', type=_seconds, metavar='SECONDS',
            default=cpu.Effort().max_s,
            help='stop after this time, alone and busy each, as soon as there '
                 'are 4 rounds, default: %(default)s')
        parser.add_argument(
            '--pcpus', metavar='LIST',
            help="pCPUs to measure, such as 0-3,8: Nova's [compute] "
                 'cpu_shared_set; default: all that this process may use')
        parser.add_argument(
            '--benchmark', default=benchmarks.DEFAULT,
            help='plugin of nova_vqos.benchmarks, default: %(default)s')
        parser.add_argument(
            '--output', metavar='FILE', default=profile.DEFAULT_PATH,
            help='where to write the profile, default: %(default)s')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        _check_writable(parsed_args.output)
        against = (cpu.yardstick(parsed_args.against)
                   if parsed_args.against else None)
        pcpus = host_cpus.choose(parsed_args.pcpus)
        benchmark = benchmarks.load(parsed_args.benchmark)
        effort = cpu.Effort(parsed_args.rounds, parsed_args.max_interval,
                            parsed_args.max_seconds)
        runner: runners.Runner = runners.NativeRunner(benchmark)
        emulator = virt_type = None
        with contextlib.ExitStack() as stack:
            if parsed_args.in_guest:
                emulator = in_guest.find_emulator(parsed_args.emulator)
                virt_type = in_guest.find_virt_type(parsed_args.virt_type)
                in_guest.check_memory(len(pcpus))
                runner = stack.enter_context(contextlib.closing(
                    in_guest.GuestRunner(
                        benchmark, emulator=emulator, virt_type=virt_type,
                        kernel=guest.find_kernel(parsed_args.kernel),
                        max_rounds=effort.max_rounds,
                        round_events=against and against.round_events)))
            result = cpu.Calibration(
                benchmark, runner, pcpus, against=against, effort=effort,
                reference_name=parsed_args.reference, emulator=emulator,
                virt_type=virt_type).run()
        profile.store(result.profile, parsed_args.output)
        self.app.LOG.info('Wrote profile %s to %s', result.profile.id,
                          parsed_args.output)
        for warning in result.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return _tell(self.app.LOG, result.profile)


class ShowProfile(lister.Lister):
    """Show a profile that was written before."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'profile', nargs='?', default=profile.DEFAULT_PATH,
            help='the file, default: %(default)s')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        return _tell(self.app.LOG, profile.load(parsed_args.profile))


class CompareProfiles(lister.Lister):
    """Say which hosts are equal, and may share one profile.

    Equal are those whose coefficients, alone and busy, differ by no more than
    their 95 % intervals leave open.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'profiles', nargs='+', metavar='PROFILE',
            help='profiles of two hosts or more, measured against the same '
                 'reference')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        members = compare.compare({
            path: profile.load(path) for path in parsed_args.profiles})
        for member in members:
            if member.shared:
                self.app.LOG.info(
                    'The hosts of group %d are equal, as far as was measured, '
                    'and may share %s', member.group, member.path)
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


class CalibrateApp(app.App):
    """The program."""

    def __init__(self) -> None:
        super().__init__(
            description='Measure this host and write its profile.',
            version='1',
            command_manager=commandmanager.CommandManager(
                'nova_vqos.calibrate'),
            deferred_help=True)


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :returns: its exit status
    """
    # What was started is ended on the way out of an exception.
    signal.signal(signal.SIGTERM, _exit)
    return int(CalibrateApp().run(sys.argv[1:] if argv is None else argv))


def _exit(signal_number: int, _frame: object) -> ty.NoReturn:
    raise SystemExit(128 + signal_number)


def _tell(log: ty.Any, shown: profile.Profile) -> ty.Any:
    """Say in words what a profile says; its numbers as a table."""
    capacity_cu = units.capacity_cu(
        shown.coefficient(pcpu) for pcpu in shown.pcpus)
    log.info(
        'Profile %s of host %s, made %s: pCPUs %s, measured in the %s with '
        '%s. 100 CU are one pCPU of %s (%.5g %s). The host has %d CU.',
        shown.id, shown.host, shown.created_at,
        profile.format_pcpus(shown.pcpus), shown.measured_in,
        shown.reference.benchmark, shown.reference.name,
        shown.reference.score, shown.reference.unit, capacity_cu)
    return _COLUMNS, list(_rows(shown))


def _rows(shown: profile.Profile) -> Iterator[tuple[object, ...]]:
    for cpu_class in shown.cpu_classes:
        for state, measured in (('alone', cpu_class.alone),
                                ('busy', cpu_class.busy)):
            yield (profile.format_pcpus(cpu_class.pcpus), state,
                   round(measured.coefficient, 5),
                   round(measured.interval_low, 5),
                   round(measured.interval_high, 5),
                   f'{measured.interval_width:.2%}', len(measured.samples),
                   round(measured.coefficient * units.CU_PER_REFERENCE_PCPU,
                         2))


def _check_writable(path: str) -> None:
    """See before measuring that the result can be written.

    :raises CalibrationError: when it cannot
    """
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    if not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise benchmarks.CalibrationError(
            f'{path} cannot be written: run as root, or give --output')


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 4 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number of rounds from 4 to 1000')
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, 86_400, 'seconds')


def _share(text: str) -> float:
    return _number(text, 1, 'a share such as 0.02')


def _number(text: str, most: float, meaning: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= most:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not {meaning}, above 0 and up to {most:g}')
    return number
