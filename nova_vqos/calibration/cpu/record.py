# SPDX-License-Identifier: Apache-2.0
"""The measurements of an interrupted calibration, which another continues.

A file beside the profile-to-be, rewritten after each measurement. It is of use
only to a calibration of the same host in the same state, with the same
benchmarks, against the same reference, and soon.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import json
import os
import time

from nova_vqos import files

SCHEMA = 1
#: Afterwards a host may have changed in ways that its fingerprint lacks.
MAX_AGE_S = 3600


@dataclasses.dataclass(frozen=True, slots=True)
class Rounds:
    """The outcome of one measurement of some pCPUs at once.

    :ivar samples: scores by pCPU
    :ivar steal: share of the time that a hypervisor below stole
    :ivar throttled: how often heat slowed the CPUs
    :ivar round_events: of a round; None: it depended on the pCPU
    :ivar clocks_mhz: the mean clock of some of the pCPUs; empty: not known
    """

    samples: Mapping[int, tuple[float, ...]]
    steal: float = 0.0
    throttled: int = 0
    round_events: int | None = None
    clocks_mhz: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def scores(self, pcpus: Iterable[int]) -> list[float]:
        """The scores of those among some pCPUs that were measured."""
        return [score for pcpu in sorted(pcpus)
                for score in self.samples.get(pcpu, ())]

    def series(self, pcpus: Iterable[int]) -> list[tuple[float, ...]]:
        """The scores of each of those that were measured, in time."""
        return [self.samples[pcpu] for pcpu in sorted(pcpus)
                if pcpu in self.samples]

    def clocks(self, pcpus: Iterable[int]) -> list[float]:
        """The clocks of those among some pCPUs that are known, in MHz."""
        return [self.clocks_mhz[pcpu] for pcpu in sorted(pcpus)
                if pcpu in self.clocks_mhz]


class Record:
    """Rounds by the name of their measurement.

    :ivar found: how many measurements an earlier calibration left
    :ivar discarded: why what was found is of no use; '': it is, or there is
        nothing
    """

    def __init__(self, path: str | None, key: Mapping[str, object], *,
                 restart: bool = False) -> None:
        """
        :param path: None: nothing is written
        :param key: what must be the same for a measurement to be of use
        :param restart: discard what is there
        """
        self._path = path
        # As it comes back from the file.
        self._key = json.loads(json.dumps(key, sort_keys=True))
        self._taken: dict[str, Rounds] = {}
        self.discarded = ''
        if path is not None and not restart:
            self._load(path)
        self.found = len(self._taken)

    def get(self, name: str) -> Rounds | None:
        """The rounds of a measurement; None: it has not been made."""
        return self._taken.get(name)

    def add(self, name: str, rounds: Rounds) -> None:
        """Write down the rounds of a measurement.

        :raises OSError: when they cannot be written
        """
        self._taken[name] = rounds
        if self._path is not None:
            files.write(json.dumps({
                'schema': SCHEMA, 'key': self._key, 'taken': {
                    name: dataclasses.asdict(taken)
                    for name, taken in self._taken.items()}}), self._path)

    def remove(self) -> None:
        """Remove the file: the profile is written."""
        if self._path is not None and os.path.exists(self._path):
            os.unlink(self._path)

    def _load(self, path: str) -> None:
        try:
            age_s = time.time() - os.stat(path).st_mtime
            document = json.loads(files.read(path))
            taken = {name: Rounds(**fields | {
                'samples': {int(pcpu): tuple(map(float, scores))
                            for pcpu, scores in fields['samples'].items()},
                'clocks_mhz': {
                    int(pcpu): float(mhz) for pcpu, mhz in fields.get(
                        'clocks_mhz', {}).items()}})
                for name, fields in document['taken'].items()}
            key, schema = document['key'], document['schema']
        except FileNotFoundError:
            return
        except (files.FileError, ValueError, LookupError, TypeError,
                AttributeError, RecursionError) as error:
            self.discarded = f'{path} cannot be read: {error}'
            return
        if schema != SCHEMA or key != self._key:
            self.discarded = (f'{path} is of another host, state of it, set '
                              'of benchmarks, or reference')
        elif not 0 <= age_s <= MAX_AGE_S:
            self.discarded = (f'{path} is older than {MAX_AGE_S // 60} '
                              'minutes, or the clock was set')
        else:
            self._taken = taken
