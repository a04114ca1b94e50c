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

"""nova-vqos-calibrate: commands that measure this host."""

import argparse
from collections.abc import Callable
import contextlib
import math
import typing as ty

from cliff import lister

from nova_vqos import fingerprint
from nova_vqos import guest
from nova_vqos import profile
from nova_vqos import units
from nova_vqos import verification
from nova_vqos.calibration import benchmark as benchmarks
from nova_vqos.calibration import classes
from nova_vqos.calibration import command as commands
from nova_vqos.calibration import conditions
from nova_vqos.calibration import cpu
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import idle
from nova_vqos.calibration import in_guest
from nova_vqos.calibration import reference as references
from nova_vqos.calibration import runner as runners
from nova_vqos.calibration import verify
from nova_vqos.cmd import arguments
from nova_vqos.cmd import profiles

# Of a profile, by the field and the command that measures it.
_PARTS = {'io': 'costs of I/O', 'quantum': 'slices'}


class CalibrateCpu(lister.Lister):
    """Measure this host's CPUs and write its profile.

    Measured is real work of several kinds per second of CPU time, with one
    pCPU of each kind busy alone and with all of them busy at once; the latter
    is what counts for capacity and caps. Ends within 5 minutes by default. If
    it is interrupted, it goes on where it was when it is started again.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
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
            help='with --reference: a benchmark to run, and how much it '
                 'counts (0: reported only; without a weight 1, or 0 of '
                 'memory-bound ones); again for others; default: '
                 f'{", ".join(benchmarks.DEFAULT_SET)}. Installed are '
                 f'{", ".join(benchmarks.names())}. With --against they are '
                 "the reference's")
        _add_command(parser)
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
        _add_effort(parser, conditions.Effort())
        parser.add_argument(
            '--max-interval', type=arguments.share, metavar='SHARE',
            default=conditions.Effort().max_interval,
            help='end a measurement when its 95%% confidence interval is '
                 'narrower than this, relative to the score, default: '
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
        _add_beside_guests(parser)
        parser.add_argument(
            '--restart', action='store_true',
            help='begin anew where an earlier calibration was interrupted')
        parser.add_argument(
            '--output', metavar='FILE', default=profile.DEFAULT_PATH,
            help='where to write the profile, default: %(default)s')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        arguments.check_writable(parsed_args.output)
        own_commands = _commands(parsed_args)
        against = (references.load(parsed_args.against)
                   if parsed_args.against else None)
        if against is None:
            members = benchmarks.choose(parsed_args.benchmark, own_commands)
        elif parsed_args.benchmark:
            raise benchmarks.CalibrationError(
                '--benchmark is for the reference: this host is measured '
                f'with its benchmarks, {_names(against.reference)}')
        else:
            members = benchmarks.choose_as(against.reference, own_commands)
        emulator = virt_type = None
        if parsed_args.in_guest:
            emulator = in_guest.find_emulator(parsed_args.emulator)
            virt_type = in_guest.find_virt_type(parsed_args.virt_type)
        effort = conditions.Effort(
            parsed_args.rounds, parsed_args.max_interval,
            parsed_args.max_seconds)
        calibration = cpu.Calibration(
            members, _setting(
                host_cpus.choose(parsed_args.pcpus), members, emulator,
                virt_type, effort, kernel=parsed_args.kernel,
                beside_guests=parsed_args.beside_guests),
            against=against, effort=effort,
            reference_name=parsed_args.reference,
            record_path=f'{parsed_args.output}.partial',
            restart=parsed_args.restart,
            class_tolerance=parsed_args.class_tolerance)
        result = calibration.run()
        made = with_parts_of(result.profile, parsed_args.output, self.app.LOG)
        profile.store(made, parsed_args.output)
        calibration.forget()
        self.app.LOG.info('Wrote profile %s to %s', made.id,
                          parsed_args.output)
        for warning in result.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return profiles.tell(self.app.LOG, made)


class VerifyProfile(lister.Lister):
    """Measure shortly, and say whether the profile still holds.

    All pCPUs are busy for that while: have no servers on the host. Ends with
    status 0 when the profile holds or has drifted by no more than is
    tolerated, with 3 when it is stale, and with 1 when that cannot be told,
    also where the scores scatter by more than is tolerated.
    """

    _STALE = 3
    _EFFORT = conditions.Effort(max_rounds=12, max_s=60)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        arguments.add_profile(parser, 'the file')
        parser.add_argument(
            '--tolerance', type=arguments.share, metavar='SHARE',
            default=0.03,
            help='a drift up to this, beyond what chance leaves open, is '
                 'tolerated, default: %(default)s')
        _add_effort(parser, self._EFFORT)
        parser.add_argument(
            '--kernel', metavar='PATH',
            help='kernel of the guests of a profile that was measured in '
                 'some, default: as of the command cpu')
        _add_command(parser)
        how = parser.add_mutually_exclusive_group()
        _add_beside_guests(how)
        how.add_argument(
            '--idle', action='store_true',
            help='measure only in time that nobody else wants, so that guests '
                 'may be at work and are not disturbed: in a cgroup that is '
                 'idle as a whole; ends with 1 where there is no such time')
        parser.add_argument(
            '--record', metavar='FILE',
            help='also write what was found to this file. The compute driver '
                 f'looks at {verification.DEFAULT_PATH}: with a profile that '
                 'was found to be stale, the host takes no new servers with '
                 'units')
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._status = 0
        return int(super().run(parsed_args)) or self._status

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        if parsed_args.record:
            arguments.check_writable(parsed_args.record, '--record')
        held = profile.load(parsed_args.profile)
        # Intervals are no part of it: another measurement would not help.
        reasons = profile.staleness(
            held, fingerprint.of_host(held.fingerprint.get('emulator')),
            max_interval=math.inf)
        findings = []
        if reasons:
            for reason in reasons:
                self.app.LOG.warning('Stale, whatever is measured: %s', reason)
        else:
            with (idle.group() if parsed_args.idle
                  else contextlib.nullcontext()):
                findings = self._measure(held, parsed_args)
            if parsed_args.record:
                self._note(parsed_args.record, held, findings)
        verdict = verify.STALE if reasons else verify.worst(findings)
        if verdict == verify.STALE:
            self._status = self._STALE
            self.app.LOG.warning('Calibrate this host again')
        elif verdict == verify.UNKNOWN:
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

    @staticmethod
    def _note(path: str, held: profile.Profile,
              findings: list[verify.Finding]) -> None:
        verification.store(
            path, held.id, verify.worst(findings), [
                {'pcpus': profile.format_pcpus(one.pcpus),
                 'drift': f'{one.drift:+.1%}', 'verdict': one.verdict}
                for one in findings])

    def _measure(self, held: profile.Profile,
                 parsed_args: argparse.Namespace) -> list[verify.Finding]:
        against = references.of_profile(held)
        # What is only reported need not hold.
        members = benchmarks.choose_as(
            against.reference._replace(benchmarks=tuple(
                known for known in against.reference.benchmarks
                if known.weight)), _commands(parsed_args))
        effort = conditions.Effort(max_rounds=parsed_args.rounds,
                                   max_s=parsed_args.max_seconds)
        setting = _setting(
            host_cpus.choose(profile.format_pcpus(held.pcpus)), members,
            held.fingerprint.get('emulator'),
            held.provenance.get('virt_type'), effort,
            kernel=parsed_args.kernel,
            beside_guests=parsed_args.beside_guests or parsed_args.idle)
        self._warn_of_kernel(held, setting)
        calibration = cpu.Calibration(
            members, setting, against=against, effort=effort,
            classes=verify.classes(held, host_cpus.classes(
                setting.pcpus, setting.sysroot)))
        measured = calibration.measure_busy()
        for warning in calibration.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return verify.judge(held, measured, parsed_args.tolerance,
                            beside_guests=calibration.guests_at_work)

    def _warn_of_kernel(self, held: profile.Profile,
                        setting: conditions.Setting) -> None:
        """No reason to call a profile stale: servers bring their own."""
        was = held.provenance.get('guest_kernel')
        if was and setting.guest_kernel:
            found = guest.kernel_release(setting.guest_kernel)
            if found != was:
                self.app.LOG.warning(
                    'Warning: guests boot Linux %s, those of the profile '
                    'booted %s: where it seems to have drifted, give that '
                    'one by --kernel', found, was)


def with_parts_of(made: profile.Profile, path: str,
                  log: ty.Any) -> profile.Profile:
    """A new profile with what was measured apart of the one it replaces.

    What I/O costs and which slices are best does not depend on the reference,
    but on all that the fingerprint holds.
    """
    try:
        before = profile.load(path)
    except profile.ProfileError:
        return made
    parts = {name: part for name in _PARTS
             if (part := getattr(before, name)) is not None}
    if not parts:
        return made
    what = ' and '.join(_PARTS[name] for name in parts)
    reasons = profile.staleness(before, made.fingerprint,
                                max_interval=math.inf)
    if before.host != made.host:
        reasons.append(f'it is of {before.host}')
    if reasons:
        log.warning(
            'Warning: %s of the profile before are left out, measure them '
            'again with %s: %s', what, ' and '.join(
                f'the command {name}' for name in parts), '; '.join(reasons))
        return made
    log.info('Kept as measured before: %s', what)
    return made._replace(**parts)


def _add_effort(parser: argparse.ArgumentParser,
                effort: conditions.Effort) -> None:
    parser.add_argument(
        '--rounds', type=arguments.rounds, default=effort.max_rounds,
        help='at most so many rounds of half a second for each pCPU in each '
             'measurement; at least 4, default: %(default)s')
    parser.add_argument(
        '--max-seconds', type=arguments.seconds, metavar='SECONDS',
        default=effort.max_s,
        help='time for all measurements together; each has 4 rounds, however '
             'long they take, default: %(default)s')


def _add_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--command', metavar='NAME=COMMAND', action='append', default=[],
        help=f'a benchmark of your own: a command with {commands.EVENTS} in '
             'it, which does so many equal pieces of work on one thread and '
             'ends; no shell runs it; again for others')


def _add_beside_guests(parser: ty.Any) -> None:
    parser.add_argument(
        '--beside-guests', action='store_true',
        help='measure even where guests are at work on these pCPUs, which '
             'makes both slower')


def _commands(parsed_args: argparse.Namespace,
              ) -> dict[str, benchmarks.Benchmark]:
    return dict(map(commands.parse, parsed_args.command))


def _names(reference: profile.Reference) -> str:
    return ', '.join(known.name for known in reference.benchmarks)


def _setting(pcpus: frozenset[int], members: tuple[benchmarks.Member, ...],
             emulator: str | None, virt_type: str | None,
             effort: conditions.Effort, *, kernel: str | None,
             beside_guests: bool) -> conditions.Setting:
    """Where the benchmarks run: in guests of an emulator, or natively.

    :param emulator: None: natively
    """
    open_runner: Callable[[benchmarks.Member, int | None], runners.Runner]
    found_kernel = None
    if emulator is None:
        def open_runner(member: benchmarks.Member, _round_events: int | None,
                        ) -> runners.Runner:
            return runners.NativeRunner(member.benchmark)
    else:
        in_guest.check_memory(len(pcpus), max(
            member.benchmark.memory_mib for member in members))
        found_kernel = guest.find_kernel(kernel)

        def open_runner(member: benchmarks.Member, round_events: int | None,
                        ) -> runners.Runner:
            return in_guest.GuestRunner(
                member.benchmark, emulator=emulator,
                virt_type=virt_type or 'qemu', kernel=found_kernel,
                max_rounds=effort.max_rounds, round_events=round_events)
    return conditions.Setting(
        pcpus, 'host' if emulator is None else 'guest', open_runner,
        emulator=emulator, virt_type=virt_type, guest_kernel=found_kernel,
        beside_guests=beside_guests)
