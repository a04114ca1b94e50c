# SPDX-License-Identifier: Apache-2.0
"""The sample for CloudKitty and its guide; it is run at level host."""

import re

import yaml

from nova_vqos.billing import meter
from nova_vqos.metrics import families
from nova_vqos.tests.fixtures import project

METRICS = 'etc/cloudkitty/nova-vqos-cloudkitty.yml'


def test_the_sample_rates_metrics_of_ours_by_their_labels():
    found = yaml.safe_load(project.sample(METRICS).read_text())['metrics']
    known = {one.name: one for one in families.ALL}
    for name, metric in found.items():
        assert known[name].kind == families.COUNTER
        assert {*metric['groupby'], *metric['metadata']} <= set(
            known[name].labels)
        named, = re.findall(r'nova_vqos_\w+',
                            metric['extra_args']['query_suffix'])
        assert 'dd_billing' in known[named].labels


@project.needs_checkout
def test_the_guide_names_all_components():
    guide = (project.TOP / 'doc/source/admin/rating.rst').read_text()
    assert {name for name in meter.COMPONENTS if f'``{name}``' in guide} == (
        set(meter.COMPONENTS))
