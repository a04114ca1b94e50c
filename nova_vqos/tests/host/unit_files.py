# SPDX-License-Identifier: Apache-2.0
"""The units of systemd that we install, and what the tests add to them."""

import pathlib
import shlex
import sys

TOP = pathlib.Path(__file__).parents[3]
ETC = TOP / 'etc/systemd'
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
