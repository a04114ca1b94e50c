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
import math
import os
import signal
import sys
import typing as ty

from cliff import app
from cliff import command
from cliff import commandmanager
from cliff import lister

from nova_vqos import fingerprint
from nova_vqos import guest
from nova_vqos import profile
from nova_vqos import units
from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import compare
from nova_vqos.calibration import cpu
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import in_guest
from nova_vqos.calibration import reference as references
from nova_vqos.calibration import runner as runners
from nova_vqos.calibration import verify

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
            '--reference', metavar='NAME', type=_name,
            help='make this host the reference, under this name: each of its '
                 'pCPUs has 100 CU from now on')
        against.add_argument(
            '--against', metavar='FILE',
            help='measure against the reference in this document (see the '
                 'command reference), or in the profile of any host that was '
                 'measured against it')
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
        _add_beside_guests(parser)
        parser.add_argument(
            '--output', metavar='FILE', default=profile.DEFAULT_PATH,
            help='where to write the profile, default: %(default)s')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        _check_writable(parsed_args.output)
        against = (references.load(parsed_args.against)
                   if parsed_args.against else None)
        pcpus = host_cpus.choose(parsed_args.pcpus)
        benchmark = benchmarks.load(parsed_args.benchmark)
        effort = cpu.Effort(parsed_args.rounds, parsed_args.max_interval,
                            parsed_args.max_seconds)
        emulator = virt_type = None
        if parsed_args.in_guest:
            emulator = in_guest.find_emulator(parsed_args.emulator)
            virt_type = in_guest.find_virt_type(parsed_args.virt_type)
        with _runner(benchmark, emulator, virt_type, len(pcpus),
                     kernel=parsed_args.kernel, max_rounds=effort.max_rounds,
                     round_events=against and against.round_events,
                     ) as runner:
            result = cpu.Calibration(
                benchmark, runner, pcpus, against=against, effort=effort,
                reference_name=parsed_args.reference, emulator=emulator,
                virt_type=virt_type,
                beside_guests=parsed_args.beside_guests).run()
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
        _add_profile(parser, 'the file')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        return _tell(self.app.LOG, profile.load(parsed_args.profile))


class VerifyProfile(lister.Lister):
    """Measure shortly, and say whether the profile still holds.

    All pCPUs are busy for that while: have no servers on the host. Ends with
    status 0 when the profile holds or has drifted by no more than is
    tolerated, with 3 when it is stale, and with 1 when that cannot be told,
    also where the scores scatter by more than is tolerated.
    """

    _STALE = 3

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_profile(parser, 'the file')
        parser.add_argument(
            '--tolerance', type=_share, metavar='SHARE', default=0.03,
            help='a drift up to this, beyond what chance leaves open, is '
                 'tolerated, default: %(default)s')
        parser.add_argument(
            '--rounds', type=_rounds, default=12,
            help='at most so many rounds of half a second for each pCPU, at '
                 'least 4, default: %(default)s')
        parser.add_argument(
            '--max-seconds', type=_seconds, metavar='SECONDS', default=15,
            help='stop after this time as soon as there are 4 rounds, '
                 'default: %(default)s')
        parser.add_argument(
            '--kernel', metavar='PATH',
            help='kernel of the guests of a profile that was measured in '
                 'some, default: as of the command cpu')
        parser.add_argument(
            '--benchmark', default=benchmarks.DEFAULT,
            help='plugin of nova_vqos.benchmarks that the profile was '
                 'measured with, default: %(default)s')
        _add_beside_guests(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._status = 0
        return int(super().run(parsed_args)) or self._status

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        held = profile.load(parsed_args.profile)
        emulator = held.fingerprint.get('emulator')
        # Intervals are no part of it: another measurement would not help.
        reasons = profile.staleness(held, fingerprint.of_host(emulator),
                                    max_interval=math.inf)
        findings = []
        if reasons:
            for reason in reasons:
                self.app.LOG.warning('Stale, whatever is measured: %s', reason)
        else:
            findings = self._measure(held, emulator, parsed_args)
        verdicts = {one.verdict for one in findings}
        if reasons or verify.STALE in verdicts:
            self._status = self._STALE
            self.app.LOG.warning('Calibrate this host again')
        elif verify.UNKNOWN in verdicts:
            self._status = 1
            self.app.LOG.warning(
                'Chance leaves more open than is tolerated: measure on a '
                'quieter host, or with more --rounds and --max-seconds')
        return ('pcpus', 'cu_per_pcpu', 'measured', 'drift', 'open_by',
                'verdict'), [
            (profile.format_pcpus(one.pcpus), *(
                round(measured.coefficient * units.CU_PER_REFERENCE_PCPU, 2)
                for measured in (one.promised, one.measured)),
             f'{one.drift:+.2%}', f'{one.open_by:.2%}', one.verdict)
            for one in findings]

    def _measure(self, held: profile.Profile, emulator: str | None,
                 parsed_args: argparse.Namespace) -> list[verify.Finding]:
        against = references.of_profile(held)
        benchmark = benchmarks.load(parsed_args.benchmark)
        effort = cpu.Effort(max_rounds=parsed_args.rounds,
                            max_s=parsed_args.max_seconds)
        virt_type = held.provenance.get('virt_type')
        pcpus = host_cpus.choose(profile.format_pcpus(held.pcpus))
        with _runner(benchmark, emulator, virt_type, len(pcpus),
                     kernel=parsed_args.kernel, max_rounds=effort.max_rounds,
                     round_events=against.round_events) as runner:
            calibration = cpu.Calibration(
                benchmark, runner, pcpus, against=against, effort=effort,
                emulator=emulator, virt_type=virt_type,
                beside_guests=parsed_args.beside_guests)
            measured = calibration.measure_busy()
        for warning in calibration.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return verify.judge(held, measured, parsed_args.tolerance)


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
            '--tolerance', type=_share, metavar='SHARE',
            default=compare.TOLERANCE,
            help='how much a host may differ from itself from one '
                 'measurement to the next, beyond what the intervals leave '
                 'open, default: %(default)s')
        parser.add_argument(
            '--max-interval', type=_share, metavar='SHARE',
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
        _add_profile(parser, "the reference host's own")
        parser.add_argument(
            '--signed-off-by', metavar='NAME', required=True, type=_name,
            help='who vouches for it, such as "Jane Doe <jane@example.org>"')
        parser.add_argument(
            '--output', metavar='FILE', required=True,
            help='where to write the document')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        _check_writable(parsed_args.output)
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
            '--name', type=_name, required=True,
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
        factor = onto.reference.score / rows[0][1].reference.score
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


def _outputs(paths: list[str], directory: str) -> list[tuple[str, str]]:
    """Where each converted profile goes.

    :raises CalibrationError: when two would be one, or one its own source
    """
    outputs: dict[str, str] = {}
    for path in paths:
        output = os.path.join(directory, os.path.basename(path))
        if output in outputs:
            raise benchmarks.CalibrationError(
                f'{outputs[output]} and {path} would both be written to '
                f'{output}: convert them one by one')
        if os.path.realpath(output) == os.path.realpath(path):
            raise benchmarks.CalibrationError(
                f'{path} would be replaced: give another --output-dir')
        _check_writable(output, '--output-dir')
        outputs[output] = path
    return [(path, output) for output, path in outputs.items()]


def _add_profile(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument('profile', nargs='?', default=profile.DEFAULT_PATH,
                        help=f'{what}, default: %(default)s')


def _add_beside_guests(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--beside-guests', action='store_true',
        help='measure even where guests are at work on these pCPUs, which '
             'makes both slower')


@contextlib.contextmanager
def _runner(benchmark: benchmarks.Benchmark, emulator: str | None,
            virt_type: str | None, guests: int, *, kernel: str | None,
            max_rounds: int, round_events: int | None,
            ) -> Iterator[runners.Runner]:
    """What runs the benchmark: in guests of an emulator, or natively.

    :param emulator: None: natively
    :param guests: how many there will be at once
    """
    if emulator is None:
        yield runners.NativeRunner(benchmark)
        return
    in_guest.check_memory(guests)
    with contextlib.closing(in_guest.GuestRunner(
            benchmark, emulator=emulator, virt_type=virt_type or 'qemu',
            kernel=guest.find_kernel(kernel), max_rounds=max_rounds,
            round_events=round_events)) as runner:
        yield runner


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


def _check_writable(path: str, option: str = '--output') -> None:
    """See before measuring that the result can be written.

    :param option: that says where to
    :raises CalibrationError: when it cannot
    """
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    if not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise benchmarks.CalibrationError(
            f'{path} cannot be written: run as root, or give {option}')


def _name(text: str) -> str:
    if not 0 < len(text) <= 256 or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f'{text!r} is no text of 1 to 256 printable characters')
    return text


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
