# SPDX-License-Identifier: Apache-2.0
"""The lab, made once for all tests of this level, and the story told on it."""

import os
import sys

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(TOP, 'devstack'))

from nova_vqos.tests.fixtures import requirement  # noqa: E402
from nova_vqos_lab import cloud  # noqa: E402
from nova_vqos_lab import requirements  # noqa: E402
from nova_vqos_lab import story  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line(
        'markers', 'long: what level upstream runs, and level cloud does not')


@pytest.fixture(scope='session')
def lab():
    """The lab, not up yet; removed with every trace in the end."""
    requirement.need('; '.join(requirements.missing()))
    with cloud.only_one():
        made = cloud.Lab()
        made.down()
        try:
            yield made
        finally:
            made.down()


@pytest.fixture(scope='session')
def told(lab):
    """The results of the story, told once for all tests."""
    return story.run(lab)
