# SPDX-License-Identifier: Apache-2.0
"""Which libraries an agent does without, for its memory's sake."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from oslo_config import cfg
from nova_vqos import push_signature
from nova_vqos.cmd import agent
from nova_vqos.conf import agent as options
conf = cfg.ConfigOpts()
options.register_opts(conf)
conf([])
conf.set_override('push_public_keys', sys.argv[2:], 'vqos_agent')
push_signature.Verifier(conf.vqos_agent.push_public_keys)
agent.start_exporter(conf, None)
print(sys.argv[1] in sys.modules)
"""


def loads(library, *public_keys):
    """:returns: whether an agent without metrics does"""
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _PROGRAM, library,
         *public_keys],
        capture_output=True, text=True, check=True).stdout == 'True\n'


@pytest.mark.parametrize('library', ['cryptography', 'prometheus_client'])
def test_what_is_off_is_not_loaded(library):
    assert not loads(library)


def test_keys_are_checked_by_the_library():
    assert loads('cryptography', '/none')
