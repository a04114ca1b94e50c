# SPDX-License-Identifier: Apache-2.0
"""Quotas in units, by Nova's unified limits in a real Keystone.

The commands are those of the guide.
"""

import json

import pytest

from nova_vqos import policy
from nova_vqos.tests.cloud import test_tools
from nova_vqos_lab import changes
from nova_vqos_lab import config
from nova_vqos_lab import paths
from nova_vqos_lab import tempest

UNITS = f'class:{policy.RESOURCE_CLASS}'
SERVICE = ('--service', 'nova', '--region', config.REGION)


def openstack(lab, *arguments):
    return test_tools.execute(lab, 'openstack', *arguments)


@pytest.fixture
def limited(lab, told):
    """Nova's own quotas, in Keystone, and none of units."""
    assert lab.is_deployed, told.checks[-1]
    tempest.prepare(lab)
    openstack(lab, 'role', 'add', '--user', 'nova', '--user-domain', 'default',
              '--system', 'all', 'reader')
    # It finds a resource without a limit: status 3.
    found = test_tools.execute(
        lab, 'nova-manage', '--config-file',
        f'{paths.etc("nova-api")}/nova.conf', 'limits',
        'migrate_to_unified_limits', '--region-id', config.REGION, status=3)
    assert UNITS in found
    try:
        with changes.quotas_of_keystone(lab):
            yield
    finally:
        for kind in ('limit',), ('registered', 'limit'):
            limits = json.loads(openstack(lab, *kind, 'list', '-f', 'json'))
            if limits:
                openstack(lab, *kind, 'delete', *(one['ID'] for one in limits))


def test_a_project_gets_no_more_units_than_its_quota(lab, limited):
    with lab.cloud() as cloud:
        project = openstack(lab, 'project', 'show', 'admin', '-f', 'value',
                            '-c', 'id').strip()
        used_cu = cloud.placement(f'/usages?project_id={project}')[
            'usages'].get(policy.RESOURCE_CLASS, 0)
        openstack(lab, 'registered', 'limit', 'create', *SERVICE,
                  '--default-limit', '1', UNITS)
        # One server more, and nearly another.
        openstack(lab, 'limit', 'create', *SERVICE, '--project', project,
                  '--resource-limit', str(used_cu + 2 * tempest.UNITS - 1),
                  UNITS)
        image = cloud.find_image('tempest-idle')
        made = cloud.boot('within', 'tempest', image, 'fast')
        try:
            made.wait_active()
            refused = cloud.compute('POST', '/servers', {'server': {
                'name': 'beyond', 'flavorRef': 'tempest', 'imageRef': image,
                'networks': 'none'}})
            assert refused.status == 403
            assert UNITS in refused.message
        finally:
            made.delete()
