# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate verify: whether a profile still holds."""

import argparse
import contextlib
import math
import typing as ty

from cliff import lister

from nova_vqos import cpuset
from nova_vqos import units
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import idle
from nova_vqos.calibration.cpu import command
from nova_vqos.calibration.cpu import drift
from nova_vqos.calibration.cpu import measure
from nova_vqos.calibration.cpu import memory
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.cpu import steps
from nova_vqos.calibration.report import table
from nova_vqos.calibration.run import Effort
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.cmd.calibrate import cpu
from nova_vqos.conf import default_path
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import model
from nova_vqos.profile import validity


class VerifyProfile(options.OptionsCommand, lister.Lister):
    """Check by a short measurement whether the profile still holds.

    All pCPUs are busy meanwhile: move servers away first. Where no other work
    is, the benchmarks that memory bounds follow for some seconds, and each has
    a verdict of its own; the worst verdict decides. The exit status is
    0 when the profile holds or has drifted within the tolerance, 3 when it is
    stale, and 1 when that remains unknown, as where the scores scatter by more
    than the tolerance.
    """

    _STALE = 3
    _EFFORT = Effort(max_rounds=12, max_s=60)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_profile(parser, 'the file')
        parser.add_argument(
            '--tolerance', type=arguments.share, metavar='SHARE',
            default=0.03,
            help='largest drift that is tolerated, beyond what chance leaves '
                 'open, default: %(default)s')
        parser.add_argument(
            '--no-memory', action='store_true',
            help='leave out the benchmarks that memory bounds, and drop what '
                 'was recorded of them; by default they run for some seconds '
                 'where no guest and no other work is on the pCPUs')
        parser.add_argument(
            '--memory-tolerance', type=arguments.share, metavar='SHARE',
            default=memory.TOLERANCE,
            help='largest drift of these that is tolerated, beyond what '
                 'chance leaves open, default: %(default)s')
        cpu.add_effort(parser, self._EFFORT)
        parser.add_argument(
            '--kernel', metavar='PATH',
            help='kernel of the guests, for a profile that was measured in '
                 'guests; default: as of the command cpu')
        cpu.add_command(parser)
        how = parser.add_mutually_exclusive_group()
        arguments.add_beside_guests(how)
        how.add_argument(
            '--idle', action='store_true',
            help='measure only in idle time, so that guests may be at work '
                 'and are not disturbed: in a cgroup that is idle as a whole; '
                 'the exit status is 1 where there is no such time')
        parser.add_argument(
            '--record', metavar='FILE',
            help='also write the result to this file. The compute driver '
                 f'reads {default_path.VERIFICATION}: while the profile is '
                 'stale, the host takes no new servers with units')

    def run(self, parsed_args: argparse.Namespace) -> int:
        self._status = 0
        return int(super().run(parsed_args)) or self._status

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        if parsed_args.record:
            arguments.check_writable(parsed_args.record, '--record')
        held = document.load(parsed_args.profile)
        # Not by intervals: another measurement would not help.
        reasons = validity.staleness(
            held, fingerprint.of_host(held.fingerprint.get('emulator')),
            max_interval=math.inf)
        findings: list[drift.Finding] = []
        kinds: list[drift.Finding] | None = []
        if reasons:
            for reason in reasons:
                self.app.LOG.warning('Stale, whatever is measured: %s', reason)
        else:
            with (idle.group() if parsed_args.idle
                  else contextlib.nullcontext()):
                findings = self._measure(held, parsed_args)
                kinds = self._measure_memory(held, parsed_args)
            if parsed_args.record:
                validity.store(
                    parsed_args.record, held.id, drift.worst(findings),
                    _recorded(findings),
                    None if kinds is None else _recorded(kinds))
        findings += kinds or []
        verdict = (drift.STALE if reasons else validity.worst(
            drift.worst(one for one in findings if not one.kind),
            [one.verdict for one in findings if one.kind]))
        if verdict == drift.STALE:
            self._status = self._STALE
            self.app.LOG.warning('Calibrate this host again')
        elif verdict == drift.UNKNOWN:
            self._status = 1
            self.app.LOG.warning(
                'Chance leaves more open than is tolerated: measure on a '
                'quieter host, or with more --rounds and --max-seconds')
        return ('pcpus', 'benchmark', 'cu_per_pcpu', 'measured', 'drift',
                'open_by', 'verdict'), [
            (cpuset.format_pcpus(one.pcpus), one.kind or table.COMBINED, *(
                round(measured.coefficient * units.CU_PER_REFERENCE_PCPU, 2)
                for measured in (one.promised, one.measured)),
             f'{one.drift:+.2%}', f'{one.open_by:.2%}', one.verdict)
            for one in findings]

    def _measure(self, held: model.Profile,
                 parsed_args: argparse.Namespace) -> list[drift.Finding]:
        against = reference.of_profile(held)
        # Benchmarks without a weight need not hold.
        members = benchmark.choose_as(
            against.reference._replace(benchmarks=tuple(
                known for known in against.reference.benchmarks
                if known.weight)), dict(map(
                    command.parse, parsed_args.command)))
        effort = Effort(max_rounds=parsed_args.rounds,
                        max_s=parsed_args.max_seconds)
        setting = cpu.setting_of(
            self.app.LOG, held, members, effort, kernel=parsed_args.kernel,
            beside_guests=parsed_args.beside_guests or parsed_args.idle)
        calibration = measure.Calibration(
            members, setting, against=against, effort=effort,
            classes=drift.classes(held, host_cpus.classes(
                setting.pcpus, setting.sysroot)))
        measured = calibration.measure_busy()
        for warning in calibration.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return drift.judge(held, measured, parsed_args.tolerance,
                           beside_guests=calibration.guests_at_work)

    def _measure_memory(self, held: model.Profile,
                        parsed_args: argparse.Namespace,
                        ) -> list[drift.Finding] | None:
        """:returns: None where they cannot be measured now"""
        if parsed_args.no_memory:
            return []
        try:
            members = memory.members(held.reference)
            if not members:
                return []
            memory.check_room(held.pcpus, members)
            with idle.group():
                return self._judge_memory(held, members, parsed_args)
        except benchmark.CalibrationError as error:
            self.app.LOG.warning(
                'Warning: memory was not verified, its last verdict stays: '
                '%s', error)
            return None

    def _judge_memory(self, held: model.Profile,
                      members: tuple[benchmark.Member, ...],
                      parsed_args: argparse.Namespace) -> list[drift.Finding]:
        """
        :raises CalibrationError: when they cannot be measured
        """
        setting = cpu.setting_of(
            self.app.LOG, held, members, memory.EFFORT,
            kernel=parsed_args.kernel, beside_guests=False)
        calibration = measure.Calibration(
            members, setting, against=reference.of_profile(held),
            effort=memory.EFFORT, classes=drift.classes(
                held, host_cpus.classes(setting.pcpus, setting.sysroot)))
        before = host_cpus.read(setting.pcpus, setting.sysroot)
        taken = calibration.measure_each(also_alone=False)
        # Guests may have begun to work meanwhile.
        load = host_cpus.read(setting.pcpus, setting.sysroot).since(before)
        found = []
        for member in members:
            known = held.reference.benchmark(member.name)
            found += drift.judge_kind(held, member.name, {
                one.pcpus: measure.coefficient(
                    taken.estimates[member.name, steps.BUSY, one.pcpus],
                    known, 0.0) for one in held.cpu_classes},
                parsed_args.memory_tolerance,
                beside_guests=load.guests_at_work)
        for warning in calibration.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return found


def _recorded(findings: list[drift.Finding]) -> list[dict[str, str]]:
    """As in the record of a verification."""
    return [{**({'kind': one.kind} if one.kind else {}),
             'pcpus': cpuset.format_pcpus(one.pcpus),
             'drift': f'{one.drift:+.1%}', 'verdict': one.verdict}
            for one in findings]
