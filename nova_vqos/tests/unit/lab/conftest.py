# SPDX-License-Identifier: Apache-2.0
"""The lab, which is in a checkout only."""

import sys

from nova_vqos.tests.fixtures import project

if project.IS_CHECKOUT:
    sys.path.append(str(project.TOP / 'devstack'))
else:
    collect_ignore_glob = ['test_*.py']
