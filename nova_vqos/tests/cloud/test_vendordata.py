# SPDX-License-Identifier: Apache-2.0
"""A guest reads its own figures, from Nova's metadata service."""

import pytest

from nova_vqos_lab import vendordata

# The story, which the first test waits for, has limits of its own.
pytestmark = pytest.mark.timeout(600, func_only=True)


@pytest.fixture(scope='module')
def reader(lab, told):
    assert lab.is_deployed, told.checks[-1]
    vendordata.start(lab)
    with lab.cloud() as cloud:
        made = vendordata.Reader(lab, cloud)
        yield made
        made.server.delete()


def test_a_guest_reads_what_its_administrator_does(lab, reader):
    read, shown = reader.wait_read()
    assert {field: read[name] for field, name
            in vendordata.FIELDS.items()} == {
                field: shown[field] for field in vendordata.FIELDS}
    assert read['promised_cu'] == vendordata.CU
    assert read['cu_per_pcpu'] == pytest.approx(
        lab.profiles.pcpu_cu(reader.server.host))


@pytest.mark.measured
def test_a_guest_that_computes_is_held_back(reader):
    read, _ = reader.wait_read()
    assert read['withheld_share'] > 0
    # A rate of ten seconds may begin with a full bucket: a quota more.
    assert 0 < read['delivered_cu'] < vendordata.CU * 1.1
