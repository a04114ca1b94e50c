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
    # What was started is ended on the way out of an exception.
    signal.signal(signal.SIGTERM, _exit)
    return int(CalibrateApp().run(sys.argv[1:] if argv is None else argv))


def _exit(signal_number: int, _frame: object) -> ty.NoReturn:
    raise SystemExit(128 + signal_number)
