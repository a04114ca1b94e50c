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

"""The qemu hook of libvirt, started at each migration and restore.

libvirt runs ``HOOK NAME OPERATION SUB-OPERATION EXTRA`` at every step of a
guest's life. Where a guest comes in (``migrate begin``, ``restore begin``) it
gives the guest's XML on stdin and takes what is printed instead; a status
other than 0 cancels the migration. At all else this returns 0 at once, and
before it imports anything: a failing ``reconnect`` would kill the guest.

Nothing but the standard library is imported here, and the rest only when it
is needed: see tools/bench/hook.py.
"""

import sys

DEFAULT_CONFIG = '/etc/nova-vqos/hook.conf'
#: The operations in which the guest's XML may be changed.
REWRITTEN = (('migrate', 'begin'), ('restore', 'begin'))

# How long libvirt is kept waiting at most, once the XML is read.
_TIMEOUT_S = 10
# libvirt's arguments: name, operation, sub-operation, extra.
_HOOK_ARGUMENTS = 4


def main(argv: list[str] | None = None, config: str = DEFAULT_CONFIG) -> int:
    """Do what libvirt, or an operator, asks.

    :param argv: arguments, without the program's name; None: this process's
    :param config: path of the hook's configuration
    :returns: the exit status; 1 cancels what libvirt is about to do
    """
    arguments = sys.argv[1:] if argv is None else argv
    if tuple(arguments[1:3]) in REWRITTEN:
        return _rewrite(arguments[0], config)
    if (len(arguments) == _HOOK_ARGUMENTS
            or (arguments and not arguments[0].startswith('-'))):
        return 0
    from nova_vqos.hooks import install
    return install.main(arguments)


def _rewrite(name: str, config: str) -> int:
    """Print the XML on stdin with the CPU tuning of this host."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    try:
        from nova_vqos.hooks import rewrite
    except ImportError as error:
        # Half an upgrade: the migration goes on.
        sys.stderr.write(
            f'nova-vqos hook: {name}: passed unchanged: {error}\n')
        while block := source.read(1 << 20):
            target.write(block)
        target.flush()
        return 0
    return rewrite.run(name, source, target, config, _TIMEOUT_S)
