# SPDX-License-Identifier: Apache-2.0
"""What many tests of the agent begin with."""

import logging

import pytest

from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import manage


@pytest.fixture(autouse=True)
def no_fault(request, caplog):
    """The agent goes on after any fault: a test that causes none fails by it.
    """
    yield
    if request.node.get_closest_marker('causes_faults') is None:
        assert [record.getMessage() for record in caplog.get_records('call')
                if record.exc_info and record.levelno >= logging.ERROR] == []


@pytest.fixture
def world(tmp_path):
    return agent.World(tmp_path)


@pytest.fixture
def agents(tmp_path):
    """Agents on a bus in memory."""
    with manage.Agents(tmp_path) as made:
        yield made
