# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: Nova's own tests, with our driver where asked for.

``--compute-driver vqos`` puts :class:`VqosLibvirtDriver` where Nova and its
tests find ``libvirt.LibvirtDriver``. What else the driver is to know, its
options say: oslo.config reads them from the environment.
"""

import pytest

STOCK = 'stock'
VQOS = 'vqos'
# The property of a test that tells how many of our drivers sold units in it.
DRIVERS = 'vqos_drivers'

_selling = pytest.StashKey[set]()


def pytest_addoption(parser):
    parser.addoption('--compute-driver', choices=(STOCK, VQOS), default=STOCK,
                     help="what 'libvirt.LibvirtDriver' is to be")


def pytest_collection_modifyitems(config):
    # NOTE: not earlier: nova.tests.functional has to be the first to import
    # Nova, since it says whether eventlet is to be.
    from nova import test

    test.TestCase._clear_attrs = _keeping_the_test(test.TestCase._clear_attrs)
    if config.getoption('compute_driver') == VQOS:
        config.stash[_selling] = _replace_driver()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    selling = item.config.stash.get(_selling, set())
    selling.clear()
    try:
        return (yield)
    finally:
        item.user_properties.append((DRIVERS, len(selling)))


def _replace_driver():
    """Make Nova's name for its libvirt driver mean ours.

    :returns: what each driver puts itself into that sells units
    """
    from nova.virt import libvirt
    from nova_vqos.virt import driver

    selling = set()

    class NotedDriver(driver.VqosLibvirtDriver):
        def update_provider_tree(self, *args, **kwargs):
            super().update_provider_tree(*args, **kwargs)
            if self._vqos_offer.sells_units:
                selling.add(id(self))

    libvirt.LibvirtDriver = NotedDriver
    return selling


def _keeping_the_test(clear_attrs):
    """Nova's clean-up, but for the one attribute that is pytest's.

    NOTE: Nova deletes all public attributes; pytest sets the test method as
    one, and deletes it itself.
    """
    def cleared(self):
        method = self.__dict__.get(self._testMethodName)
        clear_attrs(self)
        if method is not None:
            setattr(self, self._testMethodName, method)

    return cleared
