# SPDX-License-Identifier: Apache-2.0
"""Caps, claims and refusals on hosts with given profiles.

One test for each check of the story's spine.
"""

import pytest

from nova_vqos.tests.fixtures import requirement
from nova_vqos_lab import story


def judge(request, told, name):
    """A check was made, and did not fail; undecided, it says why."""
    found = [one for one in told.checks if one.name == name]
    assert len(found) == 1, f'{len(found)} checks of that name'
    assert found[0].passed is not False, found[0].detail
    if found[0].passed is None:
        requirement.undecided(request.node, found[0].detail)


@pytest.mark.parametrize('name', story.SPINE)
def test_check(request, told, name):
    judge(request, told, name)


def test_no_check_is_unknown(told):
    """Each check that is made has a test here."""
    assert {one.name for one in told.checks} == set(story.SPINE)
