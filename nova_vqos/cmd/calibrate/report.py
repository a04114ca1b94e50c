# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate report: write profiles as a page."""

import argparse
from collections.abc import Callable
import logging
import os
import tempfile
import time
import types
import typing as ty

from nova_vqos import files
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.conf import default_path
from nova_vqos.profile import document

MAX_PROFILES = 50

_PROGRESS_S = 3


class ReportProfiles(options.OptionsCommand):
    """Write profiles as one HTML page, with charts.

    The page shows the speed of the pCPUs, alone and busy, the scatter of the
    samples, and the distance of each kind of work from its promise. It needs
    no other file and no network. The command needs matplotlib.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'profiles', nargs='*', metavar='PROFILE',
            default=[default_path.PROFILE],
            help=f'up to {MAX_PROFILES} files, default: '
                 f'{default_path.PROFILE}')
        parser.add_argument(
            '--output', metavar='FILE', required=True,
            help='file to write the page to, such as report.html')

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        paths, output = parsed_args.profiles, parsed_args.output
        if len(paths) > MAX_PROFILES:
            raise CalibrationError(
                f'{len(paths)} profiles are too many for one page: give at '
                f'most {MAX_PROFILES}')
        held = [document.load(path) for path in paths]
        for path in paths:
            if os.path.exists(output) and os.path.samefile(path, output):
                raise CalibrationError(
                    f'{path} would be replaced: give another --output')
        arguments.check_writable(output)
        hosts = ', '.join(one.host for one in held)
        # Looking for the machine's fonts takes a moment, or several.
        self.app.LOG.info('Drawing the charts of %s', hosts)
        text = load_library().render(held, _progress(self.app.LOG))
        files.write(text, output)
        self.app.LOG.info('Wrote a report on %s to %s', hosts, output)


def load_library() -> types.ModuleType:
    """Import the library that makes the page; matplotlib is optional.

    matplotlib writes a list of fonts below the user's home. Where root runs
    this, that may be another user's, missing, or read-only; so it gets a
    directory that is removed afterwards.

    :raises CalibrationError: when matplotlib is missing or does not work
    """
    # Else it logs what it finds of fonts.
    logging.getLogger('matplotlib').setLevel(logging.WARNING)
    variable = 'MPLCONFIGDIR'
    before = os.environ.get(variable)
    with tempfile.TemporaryDirectory(prefix='nova-vqos-') as directory:
        os.environ[variable] = directory
        try:
            from nova_vqos.calibration.report import page
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
    return page


def _progress(log: ty.Any) -> Callable[[int, int], None]:
    """:returns: logs, every few seconds, how many charts are drawn"""
    last_s = time.monotonic()

    def report(drawn: int, total: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _PROGRESS_S:
            last_s = time.monotonic()
            log.info('Drew %d of %d charts', drawn, total)

    return report
