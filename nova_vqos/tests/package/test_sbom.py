# SPDX-License-Identifier: Apache-2.0
"""The bill of materials that tools/sbom.sh made of the installed wheel.

NOVA_VQOS_SBOM names it. cyclonedx-py has checked it by its schema.
"""

import importlib.metadata
import json
import os
import pathlib

from packaging import requirements
from packaging import utils
import pytest


@pytest.fixture(scope='module')
def sbom():
    return json.loads(pathlib.Path(os.environ['NOVA_VQOS_SBOM']).read_text())


@pytest.fixture(scope='module')
def components(sbom):
    return {utils.canonicalize_name(one['name']): one
            for one in sbom['components']}


def test_it_is_of_this_wheel(sbom):
    component = sbom['metadata']['component']
    assert component['name'] == 'nova_vqos'
    assert component['version'] == importlib.metadata.version('nova_vqos')


def test_it_has_what_is_needed_and_nothing_of_ours(sbom, components):
    needed = {
        utils.canonicalize_name(one.name)
        for one in map(requirements.Requirement,
                       importlib.metadata.requires('nova_vqos'))
        if one.marker is None or one.marker.evaluate({'extra': ''})}
    (named,) = [one['dependsOn'] for one in sbom['dependencies']
                if one['ref'] == sbom['metadata']['component']['bom-ref']]
    assert {utils.canonicalize_name(one.partition('==')[0])
            for one in named} == needed
    assert needed <= components.keys()
    assert not {'nova', 'nova-vqos', 'pip', 'pytest'} & components.keys()


def test_each_has_a_version_and_a_licence(components):
    for one in components.values():
        assert one['purl'].endswith(f'@{one["version"]}')
        assert one['licenses'], one['name']


def test_the_tests_ran_with_these_versions(components):
    here = {name: importlib.metadata.version(name) for name in components
            if name != 'setuptools'}
    assert {name for name, version in here.items()
            if version != components[name]['version']} <= {'oslo-policy'}
