# SPDX-License-Identifier: Apache-2.0
"""The units of systemd that we install, and what the tests add to them."""

import configparser
import pathlib
import shlex
import sys

TOP = pathlib.Path(__file__).parents[3]
ETC = TOP / 'etc/systemd'
AGENT = ETC / 'nova-vqos-agent.service'
HELPER = ETC / 'nova-vqos-helper.service'
SOCKET = ETC / 'nova-vqos-helper.socket'
PROBE = ETC / 'nova-vqos-probe.service'
VENDORDATA = ETC / 'nova-vqos-vendordata.service'
#: What units may hide, and where this test's own files may well be.
HIDDEN = ('/home', '/root', '/run/user', '/tmp', '/var/tmp')


def shown():
    """What the tests need of what units may hide."""
    return sorted({path for path in (str(TOP), sys.prefix, sys.base_prefix)
                   if path.startswith(tuple(f'{one}/' for one in HIDDEN))})


def showing():
    """What a unit needs in its section [Service], to see that."""
    if shown():
        # NOTE: with yes, nothing below can be shown. With this, the home
        # directories are empty otherwise.
        yield 'ProtectHome=tmpfs'
        yield 'BindReadOnlyPaths=' + ' '.join(map(shlex.quote, shown()))


def read(unit):
    """:returns: the section [Service] of a unit; lists are joined."""
    class Options(dict):
        def __setitem__(self, name, value):
            # An option that is given twice adds to the first.
            if name in self and isinstance(value, list):
                value = self[name] + value
            super().__setitem__(name, value)
    parser = configparser.RawConfigParser(
        delimiters='=', strict=False, dict_type=Options)
    parser.optionxform = str
    parser.read(unit)
    return {name: value.replace('\n', ' ').strip()
            for name, value in parser['Service'].items()}
