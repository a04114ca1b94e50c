# SPDX-License-Identifier: Apache-2.0
import pytest

from nova_vqos.tests.fixtures import fake_host


@pytest.fixture(params=fake_host.LAYOUTS.values(), ids=fake_host.LAYOUTS)
def host(request, tmp_path):
    """A host with one domain, of each layout of cgroups."""
    return fake_host.FakeHost(tmp_path, *request.param)


@pytest.fixture
def cache(host):
    """The open files of its domain."""
    made = host.cache()
    yield made
    made.close()
