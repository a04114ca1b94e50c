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


"""What a machine needs to carry the lab."""

import os
import shutil

from nova_vqos_lab import host as hosts

#: Where programs are that are not for everybody.
SBIN = '/usr/local/sbin:/usr/sbin:/sbin'

_PROGRAMS = {'mariadbd': 'mariadb-server', 'rabbitmq-server':
             'rabbitmq-server', 'busybox': 'busybox-static',
             'sysbench': 'sysbench', 'nsenter': 'util-linux'}


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
