# SPDX-License-Identifier: Apache-2.0
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
                assert not os.path.exists(os.path.join(mount.directory, group))
