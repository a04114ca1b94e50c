# SPDX-License-Identifier: Apache-2.0

import pytest

from nova_vqos.tests.unit.agent.guarantee import worlds


@pytest.fixture
def world(tmp_path):
    return worlds.World(tmp_path)
