# SPDX-License-Identifier: Apache-2.0
"""What many tests of the agent begin with."""

import pytest

from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import manage


@pytest.fixture
def world(tmp_path):
    return agent.World(tmp_path)


@pytest.fixture
def agents(tmp_path):
    """Agents on a bus in memory."""
    with manage.Agents(tmp_path) as made:
        yield made
