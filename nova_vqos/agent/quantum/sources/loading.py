# SPDX-License-Identifier: Apache-2.0
"""Load sources by their names."""

from collections.abc import Iterable, Mapping
import typing as ty

import stevedore
from stevedore import exception

from nova_vqos.agent.quantum.sources import base
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

NAMESPACE = 'nova_vqos.quantum_sources'


class Absent(base.Source):
    """Stands for a source that cannot be loaded."""

    def __init__(self, reason: str) -> None:
        self.missing = reason

    def read(self, observed: base.Observation) -> Mapping[model.Key,
                                                      recognition.Sample]:
        return {}

    def close(self) -> None:
        pass


def load(names: Iterable[str]) -> Mapping[str, base.Source]:
    """Load sources; :class:`Absent` for each one that cannot be loaded."""
    return {name: _load(name) for name in names}


def _load(name: str) -> base.Source:
    try:
        manager: ty.Any = stevedore.DriverManager(NAMESPACE, name,
                                                  invoke_on_load=True)
    except exception.NoMatches:
        return Absent(f'no source {name!r} is installed')
    except Exception as error:
        # An operator's own source may raise anything.
        return Absent(f'it cannot be loaded: {error}')
    source: base.Source = manager.driver
    return source
