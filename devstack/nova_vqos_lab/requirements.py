# SPDX-License-Identifier: Apache-2.0
"""What a machine needs to carry the lab."""

import os
import shutil

from nova_vqos_lab import host as hosts

#: Where programs are that are not for everybody.
SBIN = '/usr/local/sbin:/usr/sbin:/sbin'

_PROGRAMS = {'mariadbd': 'mariadb-server', 'rabbitmq-server':
             'rabbitmq-server', 'busybox': 'busybox-static',
             'sysbench': 'sysbench', 'openssl': 'openssl',
             'nsenter': 'util-linux',
             'ssh': 'openssh-client', 'sshd': 'openssh-server'}


def missing() -> list[str]:
    """:returns: what this machine lacks for the lab, in plain sentences."""
    lacking = hosts.missing_requirements()
    if len(os.sched_getaffinity(0)) < 2:
        lacking.append('two CPUs are needed, one for each host')
    path = f'{os.environ.get("PATH", "")}:{SBIN}'
    lacking += [f'{program} is missing: install the package {package}'
                for program, package in _PROGRAMS.items()
                if shutil.which(program, path=path) is None]
    return lacking
