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

"""What a benchmark is to the calibration.

Benchmarks are plugins: entry points of :data:`NAMESPACE`, subclasses of
:class:`Benchmark`. One does a number of equal events on one thread, and is
run natively as a program, or in a guest as a kind of work that the measuring
guest knows (:mod:`nova_vqos.guest`).
"""

import abc
import typing as ty

from stevedore import driver
from stevedore import exception

NAMESPACE = 'nova_vqos.benchmarks'
DEFAULT = 'sysbench-cpu'


class CalibrationError(Exception):
    """A host that cannot be calibrated; the message says what to do."""


class Benchmark(abc.ABC):
    """A piece of real CPU-bound work that can be repeated at will."""

    #: what the score counts, such as 'events per CPU second'
    unit: str
    #: the kind of work of the measuring guest that is this benchmark
    guest_kind: str

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """Names what the score depends on: program, version, parameters.

        Scores of different identities are never compared.

        :raises CalibrationError: when the program is missing
        """

    @property
    @abc.abstractmethod
    def program(self) -> str:
        """The path of the program, which a guest gets a copy of.

        :raises CalibrationError: when it is missing, naming its package
        """

    @abc.abstractmethod
    def argv(self, events: int) -> list[str]:
        """The command that does this many events on one thread."""

    @abc.abstractmethod
    def events_done(self, output: str) -> int:
        """How many events the command did, from what it printed.

        :raises CalibrationError: when the output does not say
        """


def load(name: str = DEFAULT) -> Benchmark:
    """A benchmark by the name of its entry point.

    :raises CalibrationError: when there is none of this name
    """
    try:
        manager: driver.DriverManager[ty.Any] = driver.DriverManager(
            NAMESPACE, name)
    except exception.NoMatches as error:
        raise CalibrationError(
            f'there is no benchmark {name!r}: no entry point of that name in '
            f'{NAMESPACE} is installed') from error
    return ty.cast(type[Benchmark], manager.driver)()
