# SPDX-License-Identifier: Apache-2.0
"""The qemu hook of libvirt: what its parts and the compute driver share.

NOTE: nothing of nova_vqos is imported here at once. The hook has to pass a
guest's XML also where half of nova_vqos was removed, as in an upgrade.
"""

import os

#: The operations in which the guest's XML may be changed.
REWRITTEN = (('migrate', 'begin'), ('restore', 'begin'))
#: A line of each script of ours.
MARK = '# Written by nova-vqos-libvirt-hook --install'


def is_ours(path: str) -> bool:
    """Whether a file is a script of ours; not where it cannot be read."""
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return MARK in file.read(4096)
    except OSError:
        return False


def is_installed(hooks_dir: str | None = None) -> bool:
    """Whether libvirt of this host runs the hook.

    :param hooks_dir: of libvirt; None: the default one
    """
    from nova_vqos.conf import default_path
    if hooks_dir is None:
        hooks_dir = default_path.HOOKS
    path = os.path.join(hooks_dir, default_path.HOOK_NAME)
    return is_ours(path) and os.access(path, os.X_OK)
