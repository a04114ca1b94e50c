# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate cpu: measure this host's CPUs."""

import argparse
from collections.abc import Callable
import math
import typing as ty

from cliff import lister

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import guest
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import runner
from nova_vqos.calibration.cpu import classes
from nova_vqos.calibration.cpu import command
from nova_vqos.calibration.cpu import in_guest
from nova_vqos.calibration.cpu import measure
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.cpu import steps
from nova_vqos.calibration.run import Effort
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.cmd.calibrate import profiles
from nova_vqos.conf import default_path
from nova_vqos.profile import document
from nova_vqos.profile import model
from nova_vqos.profile import validity

# Of a profile, by the field and the command that measures it.
_PARTS = {'io': 'costs of I/O', 'quantum': 'slices'}


class CalibrateCpu(options.OptionsCommand, lister.Lister):
    """Measure this host's CPUs and write its profile.

    The command measures real work of several kinds per second of CPU time,
    with one pCPU of each kind busy alone and with all of them busy at once;
    the latter counts for capacity and caps. It ends within 5 minutes by
    default. Started again after an interruption, it goes on where it was.
    Where the rounds of one measurement had two speeds, or the interval of the
    result is wider than --widest-interval, it writes no profile.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        against = parser.add_mutually_exclusive_group(required=True)
        against.add_argument(
            '--reference', metavar='NAME', type=arguments.name,
            help='make this host the reference, under this name: each of its '
                 'pCPUs has 100 CU from now on')
        against.add_argument(
            '--against', metavar='FILE',
            help='measure against the reference in this document (see the '
                 'command reference), or in the profile of any host that was '
                 'measured against it')
        parser.add_argument(
            '--benchmark', metavar='NAME[=WEIGHT]', action='append',
            default=[],
            help='with --reference: a benchmark to run, and its weight (0: '
                 'reported only; default: 1, or 0 of memory-bound ones); '
                 'may be repeated; default: '
                 f'{", ".join(benchmark.DEFAULT_SET)}. Installed are '
                 f'{", ".join(benchmark.names())}. With --against they are '
                 "the reference's")
        add_command(parser)
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
            help="Nova's [libvirt] virt_type, default: kvm where "
                 f'{in_guest.KVM} can be used')
        parser.add_argument(
            '--kernel', metavar='PATH',
            help='kernel of the guests, default: the newest in /boot, else '
                 "the distribution's for guests, fetched but not installed")
        add_effort(parser, measure.EFFORT)
        add_max_interval(parser)
        parser.add_argument(
            '--widest-interval', type=arguments.width, metavar='SHARE',
            default=measure.WIDEST_INTERVAL,
            help='write no profile where the 95%% confidence interval of the '
                 'coefficient stays wider than this with all pCPUs busy, '
                 'relative to the coefficient; a wider one writes it all the '
                 'same, and the host still takes no servers with units until '
                 '[vqos] profile_max_interval is as wide; default: '
                 '%(default)s')
        parser.add_argument(
            '--pcpus', metavar='LIST',
            help="pCPUs to measure, such as 0-3,8: Nova's [compute] "
                 'cpu_shared_set; default: all that this process may use')
        parser.add_argument(
            '--class-tolerance', type=arguments.share, metavar='SHARE',
            default=classes.TOLERANCE,
            help='pCPUs that look equal, and differ by more than this beyond '
                 'what chance leaves open, become classes of their own, '
                 'default: %(default)s')
        arguments.add_beside_guests(parser)
        parser.add_argument(
            '--restart', action='store_true',
            help='begin anew where an earlier calibration was interrupted')
        parser.add_argument(
            '--output', metavar='FILE', default=default_path.PROFILE,
            help='file to write the profile to, default: %(default)s')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        arguments.check_writable(parsed_args.output)
        commands = dict(map(command.parse, parsed_args.command))
        against = (reference.load(parsed_args.against)
                   if parsed_args.against else None)
        if against is None:
            members = benchmark.choose(parsed_args.benchmark, commands)
        elif parsed_args.benchmark:
            raise benchmark.CalibrationError(
                '--benchmark is for the reference: this host is measured '
                'with its benchmarks, ' + ', '.join(
                    known.name for known in against.reference.benchmarks))
        else:
            members = benchmark.choose_as(against.reference, commands)
        emulator = virt_type = None
        if parsed_args.in_guest:
            emulator = in_guest.find_emulator(parsed_args.emulator)
            virt_type = in_guest.find_virt_type(parsed_args.virt_type)
        effort = Effort(parsed_args.rounds, parsed_args.max_seconds,
                        parsed_args.max_interval)
        calibration = measure.Calibration(
            members, setting(
                host_cpus.choose(parsed_args.pcpus), members, emulator,
                virt_type, effort, kernel=parsed_args.kernel,
                beside_guests=parsed_args.beside_guests),
            against=against, effort=effort,
            reference_name=parsed_args.reference,
            record_path=f'{parsed_args.output}.partial',
            restart=parsed_args.restart,
            class_tolerance=parsed_args.class_tolerance)
        try:
            result = calibration.run(parsed_args.widest_interval)
        except measure.UnfitProfileError as error:
            # Neither rounds of this kind, nor a profile by them.
            calibration.remove_record()
            refused = f'{parsed_args.output}.refused'
            document.store(error.profile, refused)
            raise benchmark.CalibrationError(
                f'{error}. {parsed_args.output} was not written. To see the '
                'rounds: nova-vqos-calibrate report --output report.html '
                f'{refused}') from error
        made = with_parts_of(result.measured, parsed_args.output, self.app.LOG)
        document.store(made, parsed_args.output)
        calibration.remove_record()
        self.app.LOG.info('Wrote profile %s to %s', made.id,
                          parsed_args.output)
        for warning in result.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return profiles.describe_cpu(self.app.LOG, made)


def with_parts_of(made: model.Profile, path: str,
                  log: ty.Any) -> model.Profile:
    """A new profile with the other parts of the one that it replaces.

    Costs of I/O and best slices do not depend on the reference, but on the
    whole fingerprint.
    """
    try:
        before = document.load(path)
    except files.FileError:
        return made
    parts = {name: part for name in _PARTS
             if (part := getattr(before, name)) is not None}
    if not parts:
        return made
    what = ' and '.join(_PARTS[name] for name in parts)
    reasons = validity.staleness(before, made.fingerprint,
                                 max_interval=math.inf)
    if before.host != made.host:
        reasons.append(f'it is of {before.host}')
    if reasons:
        log.warning(
            'Warning: %s of the old profile are left out, measure them again '
            'with %s: %s', what, ' and '.join(
                f'the command {name}' for name in parts), '; '.join(reasons))
        return made
    log.info('Kept from the old profile: %s', what)
    return made._replace(**parts)


def add_effort(parser: argparse.ArgumentParser, effort: Effort) -> None:
    parser.add_argument(
        '--rounds', type=arguments.count, default=effort.max_rounds,
        help='maximum number of rounds of half a second for each pCPU in '
             'each measurement; at least 4, default: %(default)s')
    arguments.add_max_seconds(parser, effort,
                              'each has 4 rounds, however long they take')


def add_max_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--max-interval', type=arguments.share, metavar='SHARE',
        default=measure.EFFORT.max_interval,
        help='end a measurement when its 95%% confidence interval is '
             'narrower than this, relative to the score, default: '
             '%(default)s')


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--command', metavar='NAME=COMMAND', action='append', default=[],
        help=f'a benchmark of your own: a command with {command.EVENTS} in '
             'it, which does that many equal pieces of work on one thread and '
             'ends; no shell runs it; may be repeated')


def setting_of(log: ty.Any, held: model.Profile,
               members: tuple[benchmark.Member, ...], effort: Effort, *,
               kernel: str | None, beside_guests: bool) -> steps.Setting:
    """Run the benchmarks as they were run for a profile.

    :raises CalibrationError: when that cannot be
    """
    found = setting(
        host_cpus.choose(cpuset.format_pcpus(held.pcpus)), members,
        held.fingerprint.get('emulator'), held.provenance.get('virt_type'),
        effort, kernel=kernel, beside_guests=beside_guests)
    was = held.provenance.get('guest_kernel')
    if was and found.guest_kernel:
        booted = guest.kernel_release(found.guest_kernel)
        if booted != was:
            # No reason to call the profile stale: servers bring their own.
            log.warning(
                'Warning: guests boot Linux %s, those of the profile '
                'booted %s: where it seems to have drifted, give that '
                'one by --kernel', booted, was)
    return found


def setting(pcpus: frozenset[int], members: tuple[benchmark.Member, ...],
            emulator: str | None, virt_type: str | None, effort: Effort, *,
            kernel: str | None, beside_guests: bool) -> steps.Setting:
    """Run the benchmarks in guests of an emulator, or natively.

    :param emulator: None: natively
    """
    open_runner: Callable[[benchmark.Member, int | None], runner.Runner]
    found_kernel = None
    if emulator is None:
        def open_runner(member: benchmark.Member, _round_events: int | None,
                        ) -> runner.Runner:
            return runner.NativeRunner(member.benchmark)
    else:
        in_guest.check_memory(len(pcpus), max(
            member.benchmark.memory_mib for member in members))
        found_kernel = guest.find_kernel(kernel)

        def open_runner(member: benchmark.Member, round_events: int | None,
                        ) -> runner.Runner:
            return in_guest.GuestRunner(
                member.benchmark, emulator=emulator,
                virt_type=virt_type or 'qemu', kernel=found_kernel,
                max_rounds=effort.max_rounds, round_events=round_events)
    return steps.Setting(
        pcpus, 'host' if emulator is None else 'guest', open_runner,
        emulator=emulator, virt_type=virt_type, guest_kernel=found_kernel,
        beside_guests=beside_guests)
