# SPDX-License-Identifier: Apache-2.0
"""The compute driver, under the name that Nova's own drivers have."""

from nova_vqos.virt.driver import VqosLibvirtDriver

__all__ = ['VqosLibvirtDriver']
