#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""The agent, without the kernel's reports of writes to cgroups.

For restoring.py: as if each of them was lost.
"""

import sys

from nova_vqos.cmd import agent
from nova_vqos.hypervisor.linux import domain_files

domain_files.Cache._on_write = lambda _self, _uuid: None

if __name__ == '__main__':
    sys.exit(agent.main())
