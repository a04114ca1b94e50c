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

"""nova-vqos-calibrate report: profiles as a page to look at."""

import argparse
from collections.abc import Callable
import logging
import os
import tempfile
import time
import types
import typing as ty

from cliff import command

from nova_vqos import profile
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.cmd import arguments

MAX_PROFILES = 50

_PROGRESS_S = 3


class ReportProfiles(command.Command):
    """Write profiles as one HTML page, with charts.

    It shows how fast the pCPUs are, alone and busy, how the samples scatter,
    how far each kind of work is from its promise, and what was measured. The
    page needs no other file and no network. Needs matplotlib.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            'profiles', nargs='*', metavar='PROFILE',
            default=[profile.DEFAULT_PATH],
            help=f'up to {MAX_PROFILES} files, default: '
                 f'{profile.DEFAULT_PATH}')
        parser.add_argument(
            '--output', metavar='FILE', required=True,
            help='where to write the page, such as report.html')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        paths, output = parsed_args.profiles, parsed_args.output
        if len(paths) > MAX_PROFILES:
            raise CalibrationError(
                f'{len(paths)} profiles are too many for one page: give up '
                f'to {MAX_PROFILES}')
        held = [profile.load(path) for path in paths]
        for path in paths:
            if os.path.exists(output) and os.path.samefile(path, output):
                raise CalibrationError(
                    f'{path} would be replaced: give another --output')
        arguments.check_writable(output)
        hosts = ', '.join(one.host for one in held)
        # Looking for the machine's fonts takes a moment, or several.
        self.app.LOG.info('Drawing the charts of %s', hosts)
        text = load_library().page(held, _progress(self.app.LOG))
        profile.write(text, output)
        self.app.LOG.info('Wrote a report on %s to %s', hosts, output)


def load_library() -> types.ModuleType:
    """What makes the page, with a library that not everybody has.

    matplotlib keeps what fonts there are in the user's home. That may be
    another user's, none, or read-only where root runs this; so it gets a
    directory that is gone afterwards.

    :raises CalibrationError: when there is no matplotlib, or none that works
    """
    # Else it tells people of its fonts.
    logging.getLogger('matplotlib').setLevel(logging.WARNING)
    variable = 'MPLCONFIGDIR'
    before = os.environ.get(variable)
    with tempfile.TemporaryDirectory(prefix='nova-vqos-') as directory:
        os.environ[variable] = directory
        try:
            from nova_vqos.calibration import report
        except ImportError as error:
            raise CalibrationError(
                'the charts are drawn by matplotlib, which cannot be '
                f'imported ({error}): install the package '
                'python3-matplotlib, or nova_vqos[report] by pip') from error
        finally:
            if before is None:
                del os.environ[variable]
            else:
                os.environ[variable] = before
    return report


def _progress(log: ty.Any) -> Callable[[int, int], None]:
    """:returns: what says now and then how many charts there are"""
    last_s = time.monotonic()

    def tell(drawn: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _PROGRESS_S:
            last_s = time.monotonic()
            log.info('Drew %d of %d charts', drawn, total)

    return tell
