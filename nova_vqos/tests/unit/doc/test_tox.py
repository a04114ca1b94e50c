# SPDX-License-Identifier: Apache-2.0
"""tox has each level of tools/test.sh, as CONTRIBUTING.rst says."""

import configparser
import re

from nova_vqos.tests.fixtures import project

_LISTS = re.compile(r'^(?:QUICK|REST|MORE)=\(([^)]*)\)', re.MULTILINE)


@project.needs_checkout
def test_tox_has_each_level():
    script = (project.TOP / 'tools' / 'test.sh').read_text('utf-8')
    levels = {level for found in _LISTS.findall(script)
              for level in found.split()}
    assert {'unit', 'fuzz'} <= levels
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(project.TOP / 'tox.ini')
    (named,) = [section for section in tox.sections()
                if section.startswith('testenv:{docs,')]
    environments = {*tox['tox']['envlist'].split(','),
                    *named[named.index('{') + 1:-1].split(',')}
    assert environments == levels
