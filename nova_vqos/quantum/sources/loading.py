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

"""Finds sources by their names."""

from collections.abc import Iterable, Mapping
import typing as ty

import stevedore
from stevedore import exception

from nova_vqos.quantum import recognition
from nova_vqos.quantum.sources import base

NAMESPACE = 'nova_vqos.quantum_sources'

#: Those of this package.
NAMES = ('io', 'spin', 'cache')


class Absent(base.Source):
    """Stands for a source that could not be made."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def available(self) -> str:
        return self._reason

    def read(self, look: base.Look) -> Mapping[base.Key, recognition.Sample]:
        return {}

    def close(self) -> None:
        pass


def load(names: Iterable[str] = NAMES) -> Mapping[str, base.Source]:
    """Make sources; one that cannot be made is there, and says why."""
    return {name: _load(name) for name in names}


def _load(name: str) -> base.Source:
    try:
        manager: ty.Any = stevedore.DriverManager(NAMESPACE, name,
                                                  invoke_on_load=True)
    except exception.NoMatches:
        return Absent(f'no source {name!r} is installed')
    except Exception as error:
        # Of a plugin: it may raise what it will.
        return Absent(f'it cannot be loaded: {error}')
    source: base.Source = manager.driver
    return source
