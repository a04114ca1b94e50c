# SPDX-License-Identifier: Apache-2.0
"""The guide of the strategy for Watcher; it is run at level watcher."""

import configparser
import re
import textwrap

from oslo_config import cfg

from nova_vqos.cmd.manage import connections
from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout


def guide():
    return (project.TOP / 'doc/source/admin/watcher.rst').read_text()


def config_of(section):
    """The example of a configuration that begins with a section."""
    found, = re.findall(
        rf'^( *)(\[{re.escape(section)}\]\n(?:\1.*\n|\n)*)', guide(), re.M)
    return textwrap.dedent(''.join(found))


def test_watcher_reads_a_file_of_its_own(tmp_path):
    """Not that of the agent's user, whose group Watcher is not in."""
    parser = configparser.ConfigParser()
    parser.read_string(config_of('watcher_strategies.vqos_unit_balance'))
    ((_name, options),) = list(parser.items())[1:]
    ((name, path),) = options.items()
    strategy = (project.TOP / 'nova_vqos/watcher/strategy.py').read_text()
    assert f"cfg.StrOpt(\n            '{name}'" in strategy
    assert f'install -o root -g watcher -m 0640 /dev/null {path}\n' in guide()

    own = tmp_path / 'nova-vqos.conf'
    own.write_text(config_of('DEFAULT'))
    bus = connections.Connections(
        cfg.ConfigOpts(), config_file=str(own), connect=None, timeout_s=None)
    assert bus.options().vqos.agent_max_age_s == 300
    assert bus.options().transport_url.startswith('rabbit://')


def test_pip_takes_nothing_of_this_name_from_an_index():
    for line in re.findall(r'pip install .*', guide()):
        assert 'dist/nova_vqos-*.whl' in line
