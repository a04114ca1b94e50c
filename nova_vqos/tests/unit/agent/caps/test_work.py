# SPDX-License-Identifier: Apache-2.0
"""The agent and servers whose units are of a kind of work."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.functional import host_files

# Of 100 CU together.
KINDS = {'integer': 2.0, 'hash': 0.5}
OTHER = '6f70656e-0000-4000-8000-00000000beef'
ON_HASH = {base.Limit(40_000, 50_000)}


def calibrate(world, coefficients):
    document.store(host_files.make_profile('host', coefficients, fingerprint={
        'tick_us': '4000'}), str(world.profile_path))


@pytest.fixture
def world(tmp_path):
    made = agent.World(tmp_path)
    calibrate(made, {'0-1': KINDS})
    return made


def boot(world, units, *, work, uuid=fakes.UUID, **kwargs):
    world.host.boot(uuid, specs=fakes.make_specs(units, work=work), run_id=1,
                    **{'vcpus': 1, **kwargs})


@pytest.mark.parametrize(('work', 'limit'), [
    ('hash', (40_000, 50_000)), ('integer', (10_000, 50_000)),
    ('hash:1,integer:1', (20_000, 50_000))])
def test_the_cap_is_that_of_its_work(world, work, limit):
    boot(world, '40', work=work)
    world.start()
    assert world.limits() == {base.Limit(*limit)}
    report = world.report()
    assert report['policy']['work'] == work
    assert report['policy_source']['work'] == 'flavor'
    assert report['coefficient'] == pytest.approx(40 / limit[0] * 500)


def test_a_new_profile_without_the_kind_leaves_the_cap(world):
    boot(world, '40', work='hash')
    world.start()
    assert world.limits() == ON_HASH
    calibrate(world, {'0-1': {'integer': 1.5, 'float': 1.5}})
    world.tick(20)
    assert world.limits() == ON_HASH
    report = world.report()
    assert "'hash'" in report['problem']
    assert 'float, integer' in report['problem']
    # It is right again once it can be computed.
    calibrate(world, {'0-1': {'integer': 1.5, 'hash': 1.0}})
    world.tick(20)
    assert world.limits() == {base.Limit(20_000, 50_000)}
    assert world.report()['problem'] == ''


def test_on_unlike_pcpus_others_count_by_what_they_take(world):
    calibrate(world, {'0-1': KINDS, '2-3': {'integer': 3.0, 'hash': 3.0}})
    boot(world, '60', work='hash', uuid=OTHER,
         pcpus=frozenset({0, 1}), vcpus=2)
    boot(world, '100', work='integer')
    world.start()
    world.tick(20)
    assert [pcpus for uuid, pcpus in world.host.pinned
            if uuid == fakes.UUID] == [frozenset({2, 3})]
