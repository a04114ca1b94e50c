# SPDX-License-Identifier: Apache-2.0
"""What the reference says is what the code does.

More of it is made from the code itself while the documentation is built, see
doc/ext: here is what is written by hand.
"""

import json
import re
import textwrap

import pytest

from nova_vqos.agent import outbox
from nova_vqos.conf import default_path
from nova_vqos.conf import opts
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout

SOURCE = 'doc/source'


def read(page):
    return (project.TOP / SOURCE / page).read_text()


def section(page, title):
    """What is below a heading, to the next one like it."""
    _, found, rest = read(page).partition(f'\n{title}\n{"=" * len(title)}\n')
    assert found
    return re.split(r'\n\n[^\n]+\n=+\n', rest)[0]


@pytest.fixture
def host(tmp_path):
    """One whose server is charged for more I/O than it has units."""
    host = billing_host.Host(tmp_path)
    host.begin(billing='charge', limit_share=1.0)
    host.use(times=40, vcpu_ns=10**8, emulator_ns=2 * 10**9)
    return host


def shape(value):
    """The keys of a document, with the kind of each value."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return 'number' if type(value) in (int, float) else type(value).__name__


class TestNotifications:
    def test_the_example_equals_the_message(self, host):
        page = section('reference/notifications.rst', outbox.USAGE)
        found = re.search(r'code-block:: json\n\n((?: +.*\n|\n)+)', page)
        example = json.loads(textwrap.dedent(found[1]))
        sent = host.sent.usages[0]
        assert shape(example) == shape(sent)
        assert example['payload_version'] == sent['payload_version']

    def test_the_other_has_what_is_said_of_it(self, host):
        page = section('reference/notifications.rst', outbox.OVERDRAWN)
        left_out = set(re.findall('``(.+?)``', page.partition('without')[2]))
        event, = host.sent.events
        assert set(event) == set(host.sent.usages[0]) - left_out


def test_the_example_of_a_profile_is_one():
    text = read('reference/profile.yaml')
    found = document.loads(text)
    assert found.io_profile is not None
    assert found.quantum_profile is not None
    assert document.dumps(found) == text


def test_all_groups_of_options_are_explained():
    page = read('configuration/options.rst')
    for group, _options in opts.list_opts():
        if group is not None:
            assert f'``[{group.name}]``' in page


def test_all_files_are_explained():
    page = read('configuration/files.rst')
    paths = [option.default for _group, options in opts.list_opts()
             for option in options if str(option.default).startswith('/')]
    for path in (*paths, default_path.HOOK_CONFIG, default_path.CONFIG):
        assert path in page


def test_the_first_page_says_a_word_of_each_page():
    text = (project.TOP / 'doc/source/index.rst').read_text()
    named = re.findall(r'^\* :doc:`(.+?)`: \S', text, re.MULTILINE)
    assert named == re.findall(r'^   (\w+(?:/\w+)?)$', text, re.MULTILINE)
