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

"""The log lines that the reference tells of are those of the code."""

import ast
import logging
import re

from oslo_config import cfg
from oslo_log import log
import pytest

from nova_vqos.cmd import agent
from nova_vqos.tests import project

DIRECTORIES = {'The agent': ('agent', 'billing', 'quantum', 'hypervisor'),
               'nova-scheduler': ('scheduler',),
               'nova-compute': ('virt',)}
# Of the driver, but not below its directory.
FILES = {'nova-compute': ('host_report.py',)}
LEVELS = {'exception': 'error'}
PACKAGE = project.TOP / 'nova_vqos'

pytestmark = project.needs_checkout


def logged(paths):
    """Levels and texts of all lines that some modules log."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if (isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == 'LOG' and node.args):
                # LOG.log() has a level of its own before the text.
                text = node.args[node.func.attr == 'log']
                if isinstance(text, ast.Constant):
                    yield (LEVELS.get(node.func.attr, node.func.attr),
                           text.value)


def told():
    """What the reference has: heading, text, level."""
    if not project.IS_CHECKOUT:
        return
    text = (project.TOP / 'doc/source/reference/logs.rst').read_text()
    for who in DIRECTORIES:
        table = text.partition(f'\n{who}\n====')[2].partition('\n====')[0]
        for line in re.findall(r'^   \* - ``(.+)``\n     - (.+)$', table,
                               re.M):
            yield who, *line


@pytest.mark.parametrize(('who', 'text', 'level'), told())
def test_it_is_logged(who, text, level):
    paths = [PACKAGE / name for name in FILES.get(who, ())]
    for name in DIRECTORIES[who]:
        paths += (PACKAGE / name).rglob('*.py')
    levels = {found for found, line in logged(paths) if text in line}
    # To be searched for as it is.
    assert '%' not in text
    # LOG.log() chooses among levels.
    assert levels, 'nobody logs it'
    assert levels <= {level, 'log'}


def test_all_are_looked_for():
    assert len(list(told())) > 30


def test_the_agents_lines_name_the_host():
    """They are oslo.log's otherwise."""
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    assert agent.log_line('-') == conf.logging_default_format_string
    record = logging.makeLogRecord({'msg': 'A line', 'instance': ''})
    assert '[host%2] A line' in logging.Formatter(
        agent.log_line('host%2')).format(record)
