# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate: measure this host, write and handle profiles."""

import signal
import sys
import typing as ty

from cliff import app
from cliff import commandmanager

from nova_vqos import version


class CalibrateApp(app.App):
    """The program."""

    def __init__(self) -> None:
        super().__init__(
            description='Measure this host and write its profile.',
            version=version.version(),
            command_manager=commandmanager.CommandManager(
                'nova_vqos.calibrate'),
            deferred_help=True)


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :returns: its exit status
    """
    # An exception ends all programs on its way out.
    signal.signal(signal.SIGTERM, _exit)
    return int(CalibrateApp().run(sys.argv[1:] if argv is None else argv))


def _exit(signal_number: int, _frame: object) -> ty.NoReturn:
    raise SystemExit(128 + signal_number)
