# SPDX-License-Identifier: Apache-2.0
"""The qemu hook of libvirt, started at each migration and restore.

libvirt runs ``HOOK NAME OPERATION SUB-OPERATION EXTRA`` at every step of a
guest's life. Where a guest arrives (``migrate begin``, ``restore begin``),
libvirt passes its XML on stdin and uses the printed XML instead; a status
other than 0 cancels the migration. All other operations return 0 at once,
before any import that may fail: a failing ``reconnect`` would kill the guest.

Imports are late: see tools/bench/hook.py.
"""

import sys

from nova_vqos import hooks

# Longest time that libvirt waits once the XML is read.
_TIMEOUT_S = 10
# libvirt's arguments: name, operation, sub-operation, extra.
_HOOK_ARGUMENTS = 4


def main(argv: list[str] | None = None, config: str | None = None) -> int:
    """Serve libvirt, or an operator.

    :param argv: arguments, without the program's name; None: this process's
    :param config: path of the hook's configuration; None: the default one
    :returns: the exit status; 1 cancels the operation of libvirt
    """
    arguments = sys.argv[1:] if argv is None else argv
    if tuple(arguments[1:3]) in hooks.REWRITTEN:
        return _rewrite(arguments[0], config)
    if (len(arguments) == _HOOK_ARGUMENTS
            or (arguments and not arguments[0].startswith('-'))):
        return 0
    from nova_vqos.hooks import install
    return install.main(arguments)


def _rewrite(name: str, config: str | None) -> int:
    """Print the XML on stdin with its CPU tuning on this host."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    try:
        from nova_vqos.conf import default_path
        from nova_vqos.hooks import rewrite
    except ImportError as error:
        # Half an upgrade: the migration goes on.
        sys.stderr.write(
            f'nova-vqos hook: {name}: passed unchanged: {error}\n')
        while block := source.read(1 << 20):
            target.write(block)
        target.flush()
        return 0
    return rewrite.run(name, source, target,
                       config or default_path.HOOK_CONFIG, _TIMEOUT_S)
