# SPDX-License-Identifier: Apache-2.0
"""A systemd of its own on a host of the lab, to run units by.

In the place of the one that boots a machine, it reads the very units from
etc/. It runs as a user's manager does, since a host of the lab has a PID 1
already; as root, what it sets up for a unit is the same, but for namespaces of
users, since systemd 254.
"""

import os
import pathlib
import re
import shutil
import signal

from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import unit_files
from nova_vqos_lab import process

#: Where units are, on a host; without the leading slash.
UNITS = 'run/vqos-units'

PROGRAM = '/usr/lib/systemd/systemd'
#: Where the machine's own units are, as the distribution has them.
MACHINE_UNITS = '/usr/lib/systemd/system'

# Runs the manager. What it mounts is for itself and its units, and goes with
# them. NOTE: where cgroups are of version 1, systemd wants one hierarchy more
# to keep track of processes, of version 2 in our case: there is one always.
_MANAGER = """
mount --make-rprivate /
mkdir -p /run/systemd
mount -t tmpfs -o mode=755 tmpfs /run/systemd
mkdir /run/systemd/system
groups=/sys/fs/cgroup
if [ ! -e $groups/cgroup.controllers ]; then
    groups=$groups/unified
    mkdir -p $groups
    mount -t cgroup2 cgroup2 $groups
fi
group=$groups$(sed -n s/^0:://p /proc/self/cgroup)/$1
mkdir -p "$group"
eval "$4"
sh -ec 'echo 0 >"$0/cgroup.procs"; exec "$@"' "$group" \
    "$2" --user --unit="$3" || true
find "$group" -depth -type d -exec rmdir {} +
"""


def need():
    """Skip the test where there is no systemd."""
    requirement.need('' if os.path.exists(PROGRAM)
                     else 'the package systemd is missing')


def version():
    """:returns: of systemd, its first number."""
    said = process.run([PROGRAM, '--version']).stdout
    return int(re.match(r'systemd (\d+)', said).group(1))


def argv(group, unit, setup=''):
    """What runs the manager on a host.

    :param group: name of its cgroup
    :param unit: that it starts
    :param setup: done before, for a shell
    """
    return ['env', f'SYSTEMD_UNIT_PATH=/{UNITS}', 'XDG_RUNTIME_DIR=/run',
            'HOME=/run/systemd', 'SYSTEMD_LOG_TARGET=null',
            # Where a user's manager has StateDirectory; a later one, by the
            # second.
            'XDG_CONFIG_HOME=/var/lib', 'XDG_STATE_HOME=/var/lib',
            'SYSTEMD_GENERATOR_PATH=/run/systemd/none',
            'SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/systemd/none',
            'unshare', '--mount', 'sh', '-euc', _MANAGER, 'sh', group,
            PROGRAM, unit, setup]


def write_unit(host, name, lines=()):
    """Give a host a unit as it is, and beside it what is of this machine.

    :param lines: of the latter, of the section [Service]
    """
    directory = pathlib.Path(host.path(UNITS))
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(unit_files.ETC / name, directory)
    # There are no targets to wait for.
    lines_of_all = ['[Unit]', 'DefaultDependencies=no']
    if name.endswith('.service'):
        lines_of_all += ['[Service]', *lines, *_machine()]
    write_drop_in(host, name, 'machine', lines_of_all)
    return directory


def write_drop_in(host, name, drop_in, lines):
    """What `systemctl edit` would write."""
    directory = pathlib.Path(host.path(UNITS), f'{name}.d')
    directory.mkdir(exist_ok=True)
    (directory / f'{drop_in}.conf').write_text('\n'.join(lines) + '\n',
                                               encoding='utf-8')


def _machine():
    # NOTE: the manager of a user leaves XDG_RUNTIME_DIR writable to its units,
    # that of a machine has none.
    yield 'ReadOnlyPaths=/run'
    yield from unit_files.showing()


class Manager:
    """A manager that was started on a host.

    :ivar inside: its pid, as the host sees it
    """

    def __init__(self, host, started):
        """:param started: the process of argv()"""
        self._host = host
        self._process = started
        with open(f'/proc/{started.pid}/status', encoding='ascii') as status:
            self.inside = re.search(r'^NSpid:.*\s(\d+)$', status.read(),
                                    re.M).group(1)

    def control(self, *arguments, check=True):
        """:returns: what systemctl prints."""
        return self.enter('systemctl', '--user', *arguments,
                          check=check).stdout.strip()

    def enter(self, *argv, pid=None, check=False):
        """Run a command as root among the mounts of the manager, or a unit."""
        return self._host.run(
            ['nsenter', '--mount', '--target', pid or self.inside, *argv],
            env={'XDG_RUNTIME_DIR': '/run'}, check=check)

    def stop(self, *units):
        """End units, and then systemd."""
        try:
            if self._process.alive():
                self.control('stop', *units)
        finally:
            # SIGRTMIN+24: exit at once, whatever still runs.
            for child in self._children():
                process.Process(child).signal(signal.SIGRTMIN + 24)
            assert self._process.wait(agents.STOP_LIMIT_S)

    def _children(self):
        path = f'/proc/{self._process.pid}/task/{self._process.pid}/children'
        try:
            with open(path, encoding='ascii') as children:
                return [int(pid) for pid in children.read().split()]
        except FileNotFoundError:
            return []
