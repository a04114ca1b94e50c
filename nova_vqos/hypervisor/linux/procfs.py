# SPDX-License-Identifier: Apache-2.0
"""What the kernel shows of threads, and counters that come and go."""

from collections.abc import Mapping
import errno
import os
import typing as ty

from nova_vqos.hypervisor import base

#: The errors of reading a cgroup or a thread that is gone.
GONE = (errno.ENODEV, errno.ENOENT, errno.ESRCH)

#: The file of a cgroup that lists its threads, by the version of cgroups.
THREAD_LISTS = {1: 'tasks', 2: 'cgroup.threads'}

# Of a thread that is switched out since it waits, and not since it has to.
_SLEEPS = b'\nvoluntary_ctxt_switches:'

# More than the kernel lets one process have by default.
_MOST_BYTES = 1024 * 1024
_CHUNK_BYTES = 65536


def read_text(path: str | os.PathLike[str],
              default: str | None = None) -> str:
    """Read a small file, without the white space around its content.

    :param default: where it cannot be read; None: an error
    :raises OSError: when it cannot be read, and there is no default
    """
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read().strip()
    except OSError:
        # NOTE: the files of a pCPU or a thread that goes are gone, too.
        if default is None:
            raise
        return default


def run_path(proc_path: str, tid: int) -> str:
    """The file with the counters of a thread; see :func:`parse_run`.

    :param proc_path: where processes are looked for
    """
    return f'{proc_path}/{tid}/schedstat'


def parse_run(content: bytes) -> base.ThreadRun:
    """Parse the content of that file.

    :raises ValueError: when it is not understood
    """
    run_ns, waited_ns, runs = map(int, content.split())
    return base.ThreadRun(run_ns, waited_ns, runs)


def read_run(tid: int) -> base.ThreadRun:
    """Read the counters of a thread of this host once.

    :raises OSError: when it is gone
    :raises ValueError: when they are not understood
    """
    with open(run_path('/proc', tid), 'rb') as file:
        return parse_run(file.read())


def status_path(proc_path: str, tid: int) -> str:
    """The file with the state of a thread; see :func:`parse_sleeps`."""
    return f'{proc_path}/{tid}/status'


def parse_sleeps(content: bytes) -> int:
    """Parse from that file how often the thread slept.

    :raises ValueError: when it is not understood
    """
    _before, name, value = content.partition(_SLEEPS)
    if not name:
        raise ValueError(f'there is no line {_SLEEPS.decode().strip()}')
    return int(value.partition(b'\n')[0])


def read_sleeps(tid: int) -> int:
    """Read how often a thread of this host slept, as :func:`read_run`."""
    with open(status_path('/proc', tid), 'rb') as file:
        return parse_sleeps(file.read())


def read_threads(path: str) -> tuple[int, ...]:
    """Read which threads are in a cgroup.

    :param path: of the file that lists them, see THREAD_LISTS
    :raises OSError: when the cgroup is gone
    :raises ValueError: when it lists something else than numbers
    """
    # NOTE: opened anew each time: for a file that stays open version 1 of
    # cgroups answers from a list that may be a second old. The kernel gives a
    # page at a time.
    content = b''
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(content) < _MOST_BYTES:
            chunk = os.read(handle, _CHUNK_BYTES)
            if not chunk:
                break
            content += chunk
    finally:
        os.close(handle)
    whole = content[:content.rfind(b'\n') + 1]
    # 0: a thread that this process cannot see.
    return tuple(filter(None, map(int, whole.split())))


class Tally:
    """The sum of counters that come and go, which never falls.

    The last value of a counter that went stays in the sum; a counter that
    began anew adds to its last value.
    """

    def __init__(self) -> None:
        self._last: dict[ty.Any, int] = {}
        self._gone = 0

    @property
    def total(self) -> int:
        """The sum as of the last update."""
        return self._gone + sum(self._last.values())

    def update(self, values: Mapping[ty.Any, int]) -> int:
        """Add a reading of all counters that there are now.

        :param values: by the identity of the counter
        :returns: the sum
        """
        for key, last in self._last.items():
            if values.get(key, -1) < last:
                self._gone += last
        self._last = dict(values)
        return self.total
