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

"""nova-vqos-manage calibration: how fast the hosts were measured to be."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import time
import typing as ty

from cliff import lister

from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos.calibration import compare
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.cmd import arguments
from nova_vqos.cmd import report
from nova_vqos.manage import columns
from nova_vqos.manage import command
from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets

_SHOWN = ('host', 'pcpus', 'alone', 'busy', 'interval', 'cu_per_pcpu',
          'profile', 'measured_on', 'reference', 'age_s', 'stale')
_COMPARED = ('group', 'host', 'pcpus', 'cu_per_pcpu', 'interval',
             'difference', 'profile', 'measured_on', 'stale')
# Each may have some hundred KiB: more at a time would all come late.
_AT_ONCE = 20


class ShowCalibrations(command.ManageCommand, lister.Lister):
    """Show how fast the pCPUs of all hosts were measured to be.

    A row for each class of equal pCPUs: coefficients measured alone and with
    all of them busy, and the width of the latter's 95 % interval, relative to
    it. A profile is stale where its host is not any more as it was measured.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), 'get_profile',
                           document=False)
        return _SHOWN, [row for one in answers for row in _rows(one)]


class ReportCalibrations(command.ManageCommand, lister.Lister):
    """Compare the calibrations of all hosts, and write them as one page.

    Hosts of one group are equal as far as was measured; the difference is
    that of a host from its group's mean. With --output all profiles are
    written as one HTML page with charts, as nova-vqos-calibrate report does
    for files; that needs matplotlib.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        parser.add_argument(
            '--output', metavar='FILE',
            help='where to write the page, such as report.html; up to '
                 f'{report.MAX_PROFILES} profiles')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        output = parsed_args.output
        if output is not None:
            try:
                arguments.check_writable(output)
            except CalibrationError as error:
                raise errors.ManageError(str(error)) from error
        hosts = self.hosts(parsed_args)
        answers = self.ask(hosts, 'get_profile', document=False)
        told = [one for one in answers
                if one.value is not None and one.value['profile'] is not None]
        if not told:
            raise errors.ManageError('no host has a profile')
        held = self._fetch(told)
        if output is not None:
            self._write(list(held.values()), output)
        self._tell_spread(told)
        return _COMPARED, _comparison(told, held)

    def _fetch(self, told: Sequence[fleets.Answer]
               ) -> dict[str, profiles.Profile]:
        """:returns: each profile once, by its id, however many hosts share it
        """
        wanted = {one.value['profile']['id']: one for one in told
                  if one.value is not None}
        held = {}
        for first in range(0, len(wanted), _AT_ONCE):
            some = list(wanted.items())[first:first + _AT_ONCE]
            for answer in self.ask({one.host: one.cell for _id, one in some},
                                   'get_profile', document=True):
                if answer.value is None or answer.value['document'] is None:
                    continue
                try:
                    profile = profiles.loads(answer.value['document'])
                except profiles.ProfileError as error:
                    raise errors.ManageError(
                        f'host {answer.host}: {error}') from error
                held[profile.id] = profile
        return held

    def _write(self, held: Sequence[profiles.Profile], output: str) -> None:
        if len(held) > report.MAX_PROFILES:
            raise errors.ManageError(
                f'{len(held)} profiles are too many for one page: name up to '
                f'{report.MAX_PROFILES} hosts by --host')
        began_s = time.monotonic()
        try:
            page = report.load_library().page(held, lambda _done, _all: None)
        except CalibrationError as error:
            raise errors.ManageError(str(error)) from error
        try:
            profiles.write(page, output)
        except OSError as error:
            raise errors.ManageError(
                f'{output} cannot be written: {error.strerror}') from error
        self.app.LOG.info('Wrote %d profiles to %s in %.0f s', len(held),
                          output, time.monotonic() - began_s)

    def _tell_spread(self, told: Sequence[fleets.Answer]) -> None:
        found = sorted(
            (one['busy']['coefficient'], answer.host)
            for answer in told if answer.value is not None
            for one in answer.value['profile']['cpu_classes'])
        (low, slowest), (high, fastest) = found[0], found[-1]
        stale = [one.host for one in told
                 if one.value is not None and one.value['alarms']]
        self.app.LOG.info(
            'The fastest pCPU, of %s, is %.2f times as fast as the slowest, '
            'of %s (%.1f and %.1f CU)', fastest, high / low, slowest,
            high * units.CU_PER_REFERENCE_PCPU,
            low * units.CU_PER_REFERENCE_PCPU)
        self.app.LOG.info(
            '%d hosts have %d profiles; stale: %s', len(told),
            len({one.value['profile']['id'] for one in told
                 if one.value is not None}),
            ', '.join(stale) or 'none')


def _rows(answer: fleets.Answer) -> Iterable[tuple[ty.Any, ...]]:
    """What one host was measured to be, with _SHOWN."""
    told = (answer.value or {}).get('profile')
    alarms = None if answer.value is None else answer.value['alarms']
    if told is None:
        yield (answer.host, *[columns.Shown(None, '')] * (len(_SHOWN) - 2),
               columns.texts(alarms))
        return
    for one in told['cpu_classes']:
        yield (answer.host, one['pcpus'],
               columns.number(one['alone']['coefficient'], 4),
               *_busy(one['busy']), told['id'], told['measured_on'],
               told['reference'], columns.age(told['age_s']),
               columns.texts(alarms))


def _busy(found: Mapping[str, float]) -> tuple[columns.Shown, ...]:
    coefficient = found['coefficient']
    return (columns.number(coefficient, 4),
            columns.share((found['high'] - found['low']) / coefficient),
            columns.number(coefficient * units.CU_PER_REFERENCE_PCPU, 1))


def _comparison(told: Sequence[fleets.Answer],
                held: Mapping[str, profiles.Profile]
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
    for answer in told:
        value = answer.value or {}
        profile = value['profile']
        member = members.get(profile['id'])
        for one in profile['cpu_classes']:
            _coefficient, interval, cu = _busy(one['busy'])
            found.append((
                1 if member is None else member.group, answer.host,
                one['pcpus'], cu, interval,
                columns.share(0.0 if member is None else member.difference),
                profile['id'], profile['measured_on'],
                columns.texts(value['alarms'])))
    return sorted(found, key=lambda row: row[:2])
