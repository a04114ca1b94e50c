# SPDX-License-Identifier: Apache-2.0
"""What tools/lock.sh wrote is of the constraints and of what is required.

Mend a failure by running it again.
"""

import re

from packaging import requirements
from packaging import utils
import pytest

from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout

NOVAS = ('33', '34')
# Of the machine's libvirt, in a file of its own.
BESIDE = 'libvirt-python'
# They are chosen by tools/lib/install.sh, or come with each environment.
UNCONSTRAINED = {'nova', 'openstack-placement', 'setuptools'}
_HASH = re.compile('--hash=sha256:[0-9a-f]{64}')


def lines(name):
    """The lines of a file of requirements, each with what continues it."""
    text = (project.TOP / name).read_text().replace('\\\n', ' ')
    return [line.partition(' #')[0].strip() for line in text.splitlines()
            if line.strip() and not line.startswith('#')]


def pins(name):
    """The version of each package, by its name."""
    found = {}
    for line in lines(name):
        one = requirements.Requirement(line.partition(' --hash')[0])
        (pin,) = one.specifier
        assert pin.operator == '=='
        found[utils.canonicalize_name(one.name)] = (pin.version, one.marker)
    return found


def constraints(nova):
    found = pins('constraints.txt')
    if (project.TOP / f'constraints-nova{nova}.txt').exists():
        found |= pins(f'constraints-nova{nova}.txt')
    return {name: version for name, (version, _marker) in found.items()}


def locked(nova):
    return pins(f'hashes-nova{nova}.txt')


@pytest.mark.parametrize('nova', NOVAS)
def test_versions_are_those_of_the_constraints(nova):
    wanted = constraints(nova)
    assert {name: version for name, (version, _marker) in locked(nova).items()
            if name in wanted and version != wanted[name]} == {}


@pytest.mark.parametrize('nova', NOVAS)
def test_others_are_for_machines_unlike_this_one(nova):
    """No machine of ours has had them, so there is no constraint."""
    assert {name for name, (_version, marker) in locked(nova).items()
            if name not in constraints(nova) and marker is None
            } == UNCONSTRAINED


@pytest.mark.parametrize('nova', NOVAS)
def test_all_that_is_required_is_there(nova):
    for line in lines('requirements.txt'):
        one = requirements.Requirement(line)
        name = utils.canonicalize_name(one.name)
        if name != BESIDE:
            assert one.specifier.contains(locked(nova)[name][0]), name


@pytest.mark.parametrize('nova', NOVAS)
def test_each_supported_nova_is_there(nova):
    (supported,) = re.findall(
        r'^NOVA_VERSIONS=\((.*)\)$',
        (project.TOP / 'tools/lib/install.sh').read_text(), re.MULTILINE)
    assert locked(nova)['nova'][0] in supported.split()
    # The Placement of the same release.
    assert locked(nova)['openstack-placement'][0] == f'{int(nova) - 18}.0.0'


@pytest.mark.parametrize('name', [
    'hashes-libvirt.txt', *(f'hashes-nova{nova}.txt' for nova in NOVAS)])
def test_each_has_a_hash_and_no_package_index(name):
    for line in lines(name):
        pin, *hashes = line.partition(' --hash')[0], *_HASH.findall(line)
        assert hashes, pin
        assert line.count('--') == len(hashes), pin
        assert '//' not in line
