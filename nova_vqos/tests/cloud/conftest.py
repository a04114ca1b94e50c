# SPDX-License-Identifier: Apache-2.0
"""The lab, made once for all tests of this level, and the story on it."""

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
def tell(lab):
    """Tells a story on a cloud of its own, unless that is the one that is up.

    :returns: what gives the results of a story
    """
    told = {}

    def results_of(tale):
        if tale not in told:
            told.clear()
            lab.down()
            told[tale] = tale(lab)
        return told[tale]
    return results_of


@pytest.fixture(scope='module')
def told(tell):
    """The results of the story's spine, which runs once for all modules."""
    return tell(story.run_spine)
