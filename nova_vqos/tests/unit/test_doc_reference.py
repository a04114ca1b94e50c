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


"""What the reference says is what the code does.

More of it is made from the code itself while the documentation is built, see
doc/ext: here is what is written by hand.
"""

import inspect
import json
import re
import textwrap

import pytest

from nova_vqos import profile
from nova_vqos.agent import manager
from nova_vqos.agent import messenger
from nova_vqos.conf import opts
from nova_vqos.hooks import libvirt
from nova_vqos.manage import connections
from nova_vqos.tests import project
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_host
from nova_vqos.tests.unit import fake_hypervisor as fakes

pytestmark = project.needs_checkout

REFERENCE = 'doc/source/reference'


def read(page):
    return (project.TOP / REFERENCE / page).read_text()


def section(page, title):
    """What is below a heading, to the next one like it."""
    _, found, rest = read(page).partition(f'\n{title}\n{"=" * len(title)}\n')
    assert found
    return re.split(r'\n\n[^\n]+\n=+\n', rest)[0]


@pytest.fixture
def host(tmp_path):
    """One whose server is charged for more I/O than it has units."""
    host = billing_host.Host(tmp_path)
    host.run(billing='charge', limit_share=1.0)
    host.round()
    for _ in range(40):
        host.use(vcpu_ns=10**8, emulator_ns=2 * 10**9)
    return host


def shape(value):
    """The keys of a document, with the kind of each value."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return 'number' if type(value) in (int, float) else type(value).__name__


class TestNotifications:
    def test_the_example_is_what_is_sent(self, host):
        page = section('notifications.rst', messenger.USAGE)
        found = re.search(r'code-block:: json\n\n((?: +.*\n|\n)+)', page)
        example = json.loads(textwrap.dedent(found[1]))
        sent = host.told.usages[0]
        assert shape(example) == shape(sent)
        assert example['payload_version'] == sent['payload_version']

    def test_the_other_has_what_is_said_of_it(self, host):
        page = section('notifications.rst', messenger.OVERDRAWN)
        left_out = set(re.findall('``(.+?)``', page.partition('without')[2]))
        event, = host.told.events
        assert set(event) == set(host.told.usages[0]) - left_out


class TestRpc:
    """The page has the docstrings of the agent's methods."""

    @pytest.fixture
    def world(self, tmp_path):
        world = agent_world.World(tmp_path)
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.manager = manager.AgentManager(world.loop, 'host')
        return world

    @staticmethod
    def words(method):
        return set(re.findall(r'\w+', inspect.getdoc(method)))

    def test_all_of_a_host_is_explained(self, world):
        answer = world.ask(lambda: world.manager.get_host({}))
        told = set(answer) | set(answer['units']) | set(answer['profile'])
        assert told <= self.words(manager.AgentManager.get_host)

    def test_all_of_servers_is_explained(self, world):
        answer = world.ask(lambda: world.manager.list_servers({}))
        server, = answer['servers']
        words = self.words(manager.AgentManager.list_servers)
        assert set(answer) | set(server) <= words
        one = world.ask(lambda: world.manager.get_server(
            {}, server_uuid=server['server_uuid']))
        assert set(one) <= words | self.words(manager.AgentManager.get_server)


def test_the_example_of_a_profile_is_one():
    text = read('profile.yaml')
    found = profile.loads(text)
    assert found.io_profile is not None
    assert found.quantum_profile is not None
    assert profile.dumps(found) == text


def test_all_groups_of_options_are_explained():
    page = read('options.rst')
    for group, _options in opts.list_opts():
        if group is not None:
            assert f'``[{group.name}]``' in page


def test_all_files_are_explained():
    page = read('files.rst')
    paths = [option.default for _group, options in opts.list_opts()
             for option in options if str(option.default).startswith('/')]
    for path in (*paths, libvirt.DEFAULT_CONFIG, connections.DEFAULT_CONFIG):
        assert path in page


def test_the_first_page_says_a_word_of_each_page():
    text = (project.TOP / 'doc/source/index.rst').read_text()
    named = re.findall(r'^\* :doc:`(.+?)`: \S', text, re.MULTILINE)
    assert named == re.findall(r'^   (\w+(?:/\w+)?)$', text, re.MULTILINE)
