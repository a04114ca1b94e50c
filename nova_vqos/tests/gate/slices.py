# SPDX-License-Identifier: Apache-2.0
"""Slices of the long tests: which of them run with a change.

slices.toml has them. Each takes some minutes; all of them together take more
than a gate may. So a gate runs the one that has not run for longest, and of
those that a change is about what there is time for: after as many gates as
there are slices all have run.
"""

import dataclasses
import fnmatch
import os
import pathlib
import re
import tomllib

_TOP = pathlib.Path(__file__).parents[3]
_PATH = pathlib.Path(__file__).with_name('slices.toml')
#: Of those that a change is about, so many run; the rest is named.
MOST_TOUCHED = 2
#: What slices of a gate take together: all else takes 23 minutes in CI.
MOST_MINUTES = 17


@dataclasses.dataclass(frozen=True)
class Slice:
    """Some of a level's tests that are measured or marked ``rotation``.

    :ivar name: of it
    :ivar level: host, cloud, or one that is run whole
    :ivar minutes: that it takes
    :ivar tests: files of the level; none: it runs whole
    :ivar paths: patterns of what it is about, from the top of the tree;
        besides its tests, and the modules beside these that they name
    """

    name: str
    level: str
    minutes: int
    paths: tuple[str, ...]
    tests: tuple[str, ...] = ()

    def is_about(self, changed):
        """:param changed: paths of files"""
        return any(self._is_about(path) for path in changed)

    def _is_about(self, path):
        folder = f'nova_vqos/tests/{self.level}'
        if os.path.dirname(path) != folder:
            return any(fnmatch.fnmatchcase(path, pattern)
                       for pattern in self.paths)
        name = os.path.basename(path)
        named = re.compile(rf'\b{re.escape(name.removesuffix(".py"))}\b')
        return name == 'conftest.py' or name in self.tests or any(
            named.search((_TOP / folder / test).read_text(encoding='utf-8'))
            for test in self.tests)


def load(path=_PATH):
    """:returns: {name: Slice}"""
    with open(path, 'rb') as stream:
        read = tomllib.load(stream)
    return {name: Slice(name, one['level'], one['minutes'],
                        tuple(one['paths']), tuple(one.get('tests', ())))
            for name, one in read.items()}


def choose(slices, changed, ages):
    """Which slices a gate runs.

    :param slices: {name: Slice}
    :param changed: {name: paths of files that changed since it was green}
    :param ages: {name: number of commits since it was green, or since it is
        there}
    :returns: (names in the order to run, names that the change is about and
        that are left out)
    """
    oldest_first = sorted(slices, key=lambda name: (-ages[name], name))
    touched = [name for name in oldest_first
               if slices[name].is_about(changed[name])]
    # Else one that takes long would never be the oldest that fits.
    chosen = oldest_first[:1]
    left_minutes = MOST_MINUTES - slices[chosen[0]].minutes
    for name in touched:
        if (name not in chosen and len(chosen) <= MOST_TOUCHED
                and slices[name].minutes <= left_minutes):
            chosen.append(name)
            left_minutes -= slices[name].minutes
    return chosen, [name for name in touched if name not in chosen]
