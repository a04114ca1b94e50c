# SPDX-License-Identifier: Apache-2.0
"""What tests of figures for guests share."""

import pytest

from nova_vqos.tests.fixtures import vendordata


@pytest.fixture
def clock():
    return vendordata.Clock()
