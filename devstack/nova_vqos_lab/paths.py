# SPDX-License-Identifier: Apache-2.0
"""Where the lab keeps things: one directory, removed with the lab.

Two environment variables, read once, let two labs run side by side:
NOVA_VQOS_LAB_DIR, the directory of everything below, and
NOVA_VQOS_LAB_PREFIX, the first part of the names of namespaces and cgroups.
Three more say what it is like: NOVA_VQOS_LAB_PERIOD_US, the CFS period of all
caps, see config; NOVA_VQOS_LAB_SLOW, what makes the slow host slow, see
slowcpu; and NOVA_VQOS_LAB_COUNT, whether QEMU counts instructions, see
counting. NOVA_VQOS_LAB_PATIENCE is by how much waits for anything may last
longer, on an emulated machine.
"""

import os

ROOT = os.environ.get('NOVA_VQOS_LAB_DIR', '/var/lib/nova-vqos-lab')
PREFIX = os.environ.get('NOVA_VQOS_LAB_PREFIX', 'vqos')
#: The id of the user whose code the hosts run as root: this checkout's owner.
OWNER = str(os.stat(__file__).st_uid)

LOGS = os.path.join(ROOT, 'log')
RUN = os.path.join(ROOT, 'run')
HOSTS = os.path.join(ROOT, 'hosts')
OPENRC = os.path.join(ROOT, 'openrc')
# Of tempest: its configuration and its workspace.
TEMPEST = os.path.join(ROOT, 'tempest')
#: Of nova-vqos-manage.
MANAGE_CONF = os.path.join(ROOT, 'etc', 'nova-vqos', 'nova-vqos.conf')
# nova-compute's own directory: the same path on all hosts, since a domain's
# XML names files below it and migrates with them; on each host a directory
# of its own is mounted there.
COMPUTE_STATE_PATH = os.path.join(ROOT, 'nova')

# RFC 2544's network for tests of equipment, which no Internet host has. The
# addresses exist in the lab's network namespaces only.
NETWORK_LENGTH = 24
CONTROLLER_ADDRESS = '198.18.0.1'
HOST_ADDRESSES = {'fast': '198.18.0.11', 'slow': '198.18.0.12'}


def log(name: str) -> str:
    """:returns: the log of a process, its directory made."""
    os.makedirs(LOGS, exist_ok=True)
    return os.path.join(LOGS, f'{name}.log')


def etc(name: str) -> str:
    """:returns: the configuration directory of a service, made."""
    return _made(os.path.join(ROOT, 'etc', name))


def data(name: str) -> str:
    """:returns: the data directory of a service, made."""
    return _made(os.path.join(ROOT, 'data', name))


def make_root() -> None:
    """Make the lab's own directories, closed to other users."""
    os.makedirs(ROOT, mode=0o700, exist_ok=True)
    for directory in (LOGS, RUN, HOSTS, COMPUTE_STATE_PATH):
        os.makedirs(directory, exist_ok=True)


def _made(directory: str) -> str:
    os.makedirs(directory, exist_ok=True)
    return directory
