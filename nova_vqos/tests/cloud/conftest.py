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

"""The lab, made once for all tests of this level, and the story told on it."""

import os
import sys

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(TOP, 'devstack'))

from nova_vqos_lab import cloud  # noqa: E402
from nova_vqos_lab import requirements  # noqa: E402
from nova_vqos_lab import story  # noqa: E402


@pytest.fixture(scope='session')
def lab():
    """The lab, not up yet; removed with every trace in the end."""
    lacking = requirements.missing()
    if lacking:
        if os.environ.get('CI') == 'true':
            pytest.fail('; '.join(lacking))
        pytest.skip('; '.join(lacking))
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
    return story.tell(lab)
