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

"""Last of all: the lab goes, and takes its traces along."""

import os

from nova_vqos_lab import pace
from nova_vqos_lab import paths


def test_nothing_is_left(lab, told):
    assert told.checks
    lab.down()
    assert not os.path.exists(paths.ROOT)
    assert not lab.network.exists(lab.network.controller)
    for host in lab.hosts.values():
        for mount in host.hierarchy.roots():
            for group in host.cgroup, pace.GROUP:
                assert not os.path.exists(
                    os.path.join(mount.directory, group))
