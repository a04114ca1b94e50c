# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage calibration show and calibration report."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import time
import typing as ty

from cliff import lister

from nova_vqos import files
from nova_vqos import units
from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import calibration
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import compare
from nova_vqos.cmd import arguments
from nova_vqos.cmd.calibrate import report
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import output
from nova_vqos.profile import document
from nova_vqos.profile import model

_SHOWN = ('host', 'pcpus', 'alone', 'busy', 'interval', 'cu_per_pcpu',
          'profile', 'measured_on', 'reference', 'age_s', 'stale')
_COMPARED = ('group', 'host', 'pcpus', 'cu_per_pcpu', 'interval',
             'difference', 'profile', 'measured_on', 'stale')
# Each may have some hundred KiB: more at a time would all come late.
_AT_ONCE = 20


class _Calibrated(ty.NamedTuple):
    """A host that has a profile."""

    host: str
    cell: str
    alarms: Sequence[str]
    profile: calibration.CalibratedProfile


class ShowCalibrations(command.ManageCommand, lister.Lister):
    """Show the measured speed of the pCPUs of all hosts.

    A row for each class of equal pCPUs: coefficients measured alone and with
    all of them busy, and the width of the latter's 95 % interval, relative to
    it. A profile is stale where the host has changed since.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), rpcapi.GET_PROFILE,
                           document=False)
        return _SHOWN, [row for one in answers for row in _rows(one)]


class ReportCalibrations(command.ManageCommand, lister.Lister):
    """Compare the calibrations of all hosts, and write them as one page.

    Hosts of one group are equal as far as was measured; the difference is
    that of a host from its group's mean. With --output all profiles are
    written as one HTML page with charts, as nova-vqos-calibrate report does
    for files; that needs matplotlib.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        command.add_hosts(parser)
        parser.add_argument(
            '--output', metavar='FILE',
            help='where to write the page, such as report.html; up to '
                 f'{report.MAX_PROFILES} profiles')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        output = parsed_args.output
        if output is not None:
            try:
                arguments.check_writable(output)
            except CalibrationError as error:
                raise errors.ManageError(str(error)) from error
        hosts = self.hosts(parsed_args)
        answers = self.ask(hosts, rpcapi.GET_PROFILE, document=False)
        found = [_Calibrated(one.host, one.cell, one.value.alarms,
                             one.value.profile) for one in answers
                 if one.value is not None and one.value.profile is not None]
        if not found:
            raise errors.ManageError('no host has a profile')
        held = self._fetch(found)
        if output is not None:
            self._write(list(held.values()), output)
        self._say_spread(found)
        return _COMPARED, _comparison(found, held)

    def _fetch(self, hosts: Iterable[_Calibrated]
               ) -> dict[str, model.Profile]:
        """:returns: each profile once, by its id, however many hosts share it
        """
        wanted = {one.profile.id: one for one in hosts}
        held = {}
        for first in range(0, len(wanted), _AT_ONCE):
            some = list(wanted.items())[first:first + _AT_ONCE]
            for answer in self.ask({one.host: one.cell for _id, one in some},
                                   rpcapi.GET_PROFILE, document=True):
                if answer.value is None or answer.value.document is None:
                    continue
                try:
                    profile = document.loads(answer.value.document)
                except files.FileError as error:
                    raise errors.ManageError(
                        f'host {answer.host}: {error}') from error
                held[profile.id] = profile
        return held

    def _write(self, held: Sequence[model.Profile], output: str) -> None:
        if len(held) > report.MAX_PROFILES:
            raise errors.ManageError(
                f'{len(held)} profiles are too many for one page: name up to '
                f'{report.MAX_PROFILES} hosts by --host')
        began_s = time.monotonic()
        try:
            page = report.load_library().render(held, lambda _done, _all: None)
        except CalibrationError as error:
            raise errors.ManageError(str(error)) from error
        try:
            files.write(page, output)
        except OSError as error:
            raise errors.ManageError(
                f'{output} cannot be written: {error.strerror}') from error
        took_s = time.monotonic() - began_s
        self.say(f'Wrote {len(held)} profiles to {output} in {took_s:.0f} s')

    def _say_spread(self, hosts: Sequence[_Calibrated]) -> None:
        found = sorted((one.busy.coefficient, host.host)
                       for host in hosts for one in host.profile.cpu_classes)
        (low, slowest), (high, fastest) = found[0], found[-1]
        stale = [one.host for one in hosts if one.alarms]
        high_cu, low_cu = (one * units.CU_PER_REFERENCE_PCPU
                           for one in (high, low))
        self.say(
            f'The fastest pCPU, of {fastest}, is {high / low:.2f} times as '
            f'fast as the slowest, of {slowest} ({high_cu:.1f} and '
            f'{low_cu:.1f} CU)')
        profiles = {one.profile.id for one in hosts}
        self.say(f'{len(hosts)} hosts have {len(profiles)} profiles; stale: '
                 + (', '.join(stale) or 'none'))


def _rows(answer: fanout.Answer[calibration.Calibration]
          ) -> Iterable[tuple[ty.Any, ...]]:
    """The calibration of one host, with _SHOWN."""
    value = answer.value
    if value is None or value.profile is None:
        yield (answer.host, *[output.text(None)] * (len(_SHOWN) - 2),
               output.texts(value.alarms if value else None))
        return
    profile = value.profile
    for one in profile.cpu_classes:
        yield (answer.host, one.pcpus,
               output.number(one.alone.coefficient, 4), *_busy(one.busy),
               profile.id, profile.measured_on, profile.reference,
               output.age(profile.age_s), output.texts(value.alarms))


def _busy(found: calibration.Coefficient) -> tuple[output.Shown, ...]:
    coefficient = found.coefficient
    return (output.number(coefficient, 4),
            output.share((found.high - found.low) / coefficient),
            output.number(coefficient * units.CU_PER_REFERENCE_PCPU, 1))


def _comparison(hosts: Iterable[_Calibrated],
                held: Mapping[str, model.Profile]
                ) -> list[tuple[ty.Any, ...]]:
    """Rows with _COMPARED; no groups where they cannot be made."""
    members: Mapping[str, compare.Member] = {}
    if len(held) > 1:
        try:
            members = {one.profile.id: one for one in compare.compare(held)}
        except CalibrationError as error:
            raise errors.ManageError(
                f'the hosts cannot be compared: {error}') from error
    found = []
    for host in hosts:
        profile, member = host.profile, members.get(host.profile.id)
        for one in profile.cpu_classes:
            _coefficient, interval, cu = _busy(one.busy)
            found.append((
                1 if member is None else member.group, host.host,
                one.pcpus, cu, interval,
                output.share(0.0 if member is None else member.difference),
                profile.id, profile.measured_on, output.texts(host.alarms)))
    return sorted(found, key=lambda row: row[:2])
