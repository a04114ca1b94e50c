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

"""The levels of tools/test.sh are those that are told of."""

import configparser
import re

import pytest

from nova_vqos.tests import project

pytestmark = project.needs_checkout

SCRIPT = project.TOP / 'tools/test.sh'


@pytest.fixture
def levels():
    text = SCRIPT.read_text()
    return [name for variable in ('LEVELS', 'ON_REQUEST') for name in
            re.search(rf'^{variable}=\((.*)\)$', text, re.M)[1].split()]


def test_the_help_has_all(levels):
    words = re.search(r'cat <<EOT\n(.*?)\nEOT', SCRIPT.read_text(), re.S)[1]
    assert re.findall(r'^  (\w+)  +\S', words, re.M) == levels


def test_each_has_a_function(levels):
    text = SCRIPT.read_text()
    assert [name for name in levels if f'\nrun_{name}() {{' not in text] == []


def test_the_guide_tells_of_all(levels):
    page = (project.TOP / 'doc/source/contributor/testing.rst').read_text()
    assert re.findall(r'^``(\w+)``\n    ', page, re.M)[:len(levels)] == levels


def test_tox_has_all(levels):
    tox = configparser.ConfigParser()
    tox.read(project.TOP / 'tox.ini')
    named = tox['tox']['envlist'].split(',')
    for section in tox.sections():
        found = re.fullmatch(r'testenv:\{(.*)\}', section)
        named += found[1].split(',') if found else []
    assert sorted(named) == sorted(levels)
