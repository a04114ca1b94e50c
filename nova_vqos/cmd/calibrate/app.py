# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate: measure this host, write and handle profiles."""

import sys

from nova_vqos.cmd import program


class CalibrateApp(program.Program):
    """The program."""

    def __init__(self) -> None:
        super().__init__('Measure this host and write its profile.',
                         'nova_vqos.calibrate')


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :returns: its exit status
    """
    program.end_cleanly()
    return int(CalibrateApp().run(sys.argv[1:] if argv is None else argv))
