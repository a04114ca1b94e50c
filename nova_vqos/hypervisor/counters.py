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

"""Counters that the kernel keeps in files, read again and again."""

from collections.abc import Mapping
import errno
import os
import typing as ty

# What says that the cgroup or the thread of an open file is gone.
GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)

# Of all domains together: beyond it a file is opened for each reading. Both
# work; what is kept open costs half the time, and a place in the process's
# table of files.
MOST_KEPT_OPEN = 8192

# The longest file that is read whole is a cgroup's cpu.stat.
_READ_BYTES = 4096


class Budget:
    """How many files may still be kept open."""

    def __init__(self, files: int = MOST_KEPT_OPEN) -> None:
        self.files = files


class CounterFile:
    """A file that is read often, kept open if that may be."""

    def __init__(self, path: str, budget: Budget) -> None:
        """Open it.

        :raises OSError: when it is not there
        """
        self._path = path
        self._budget = budget
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if budget.files <= 0:
            self._release()
        else:
            budget.files -= 1

    def read(self) -> bytes:
        """Its content, of the same cgroup or thread as at first.

        :raises OSError: with one of GONE as its number when that is gone
        """
        if self._handle is not None:
            return os.pread(self._handle, _READ_BYTES, 0)
        with open(self._path, 'rb', buffering=0) as file:
            return file.read(_READ_BYTES)

    def close(self) -> None:
        """Close it; again is harmless."""
        if self._handle is not None:
            self._release()
            self._budget.files += 1

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


class Tally:
    """The sum of counters that come and go, which never falls.

    What one had counted when it went stays in the sum, and one that began
    anew counts on top of what it had.
    """

    def __init__(self) -> None:
        self._last: dict[ty.Any, int] = {}
        self._gone = 0

    @property
    def total(self) -> int:
        """The sum as of the last update."""
        return self._gone + sum(self._last.values())

    def update(self, values: Mapping[ty.Any, int]) -> int:
        """Take a reading of those that there are now.

        :param values: by what tells one counter from another
        :returns: the sum
        """
        for key, last in self._last.items():
            if values.get(key, -1) < last:
                self._gone += last
        self._last = dict(values)
        return self.total
