# SPDX-License-Identifier: Apache-2.0
"""``compute_driver = vqos.VqosLibvirtDriver``.

Nova imports compute drivers from below nova.virt only: this package is there
to be found, and holds nothing itself.
"""

from nova_vqos.virt.driver import VqosLibvirtDriver

__all__ = ['VqosLibvirtDriver']
