# SPDX-License-Identifier: Apache-2.0
"""Hosts whose servers are billed."""

import pytest

from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import billing_host


@pytest.fixture
def world(tmp_path):
    return billing.World(tmp_path)


@pytest.fixture
def host(tmp_path):
    return billing_host.Host(tmp_path)
