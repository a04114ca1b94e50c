# SPDX-License-Identifier: Apache-2.0
"""What operators look at, by nova-vqos-manage, on the lab's cloud."""

import json
import os
import subprocess

import pytest

from nova_vqos import policy
from nova_vqos.tests.fixtures import project
from nova_vqos_lab import node
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import services
from nova_vqos_lab import tempest

# Agents sample each ten seconds, and a rate takes two samples.
RATES_LIMIT_S = 90
COMMAND_LIMIT_S = 60
METADEFS = 'etc/glance/metadefs/compute-vqos.json'


@pytest.fixture(scope='module')
def server(lab, told):
    """A server that works all the time, on the slow host."""
    assert lab.is_deployed, told.checks[-1]
    tempest.prepare(lab)
    with lab.cloud() as cloud:
        made = cloud.boot('watched', 'tempest',
                          cloud.find_image('tempest-work'), 'slow')
        made.wait_active()
    try:
        yield made
    finally:
        with lab.cloud() as cloud:
            made.cloud = cloud
            made.delete()


def run(lab, *arguments):
    """Run nova-vqos-manage as a person does; it prints JSON."""
    return subprocess.run(
        lab.inside([f'{services.BIN}/nova-vqos-manage', *arguments,
                    '-f', 'json']),
        env=lab.environment(), capture_output=True, text=True,
        timeout=COMMAND_LIMIT_S, check=False)


def manage(lab, *arguments):
    """:returns: what it printed"""
    done = run(lab, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def execute(lab, program, *arguments, status=0):
    """:returns: what a program in the controller's network printed"""
    done = subprocess.run(
        lab.inside([f'{services.BIN}/{program}', *arguments]),
        env=lab.environment(), capture_output=True, text=True,
        timeout=COMMAND_LIMIT_S, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout


def load_metadefs(lab):
    """As the guide says."""
    execute(lab, 'glance-manage', '--config-file',
            f'{paths.etc("glance")}/glance-api.conf', 'db', 'load_metadefs',
            '--path', str(project.sample(METADEFS).parent), '--merge',
            '--prefer_new')


def test_extra_specs_are_known_to_glance(lab, server):
    load_metadefs(lab)
    shown = json.loads(execute(
        lab, 'openstack', 'image', 'metadef', 'property', 'list',
        'OS::Compute::Vqos', '-f', 'json'))
    assert {one['name'] for one in shown} == set(policy.KEYS)


def test_openstackclient_lists_the_same(lab, server):
    shown = execute(lab, 'openstack', 'vqos', 'host', 'list', '-c', 'host',
                    '-c', 'capacity_cu', '-f', 'json')
    assert json.loads(shown) == [
        {name: host[name] for name in ('host', 'capacity_cu')}
        for host in manage(lab, 'host', 'list')]
    for command in (('server', 'show', server.name), ('audit',),
                    ('policy', 'push', '--dry-run')):
        execute(lab, 'openstack', 'vqos', *command)


def test_openstackclient_checks_the_same(lab, server):
    """Status, hosts, and on stderr what they are checked for."""
    for command, name in (('flavor', 'tempest'), ('migration', server.name)):
        ours = run(lab, command, 'check', name)
        theirs = subprocess.run(
            lab.inside([f'{services.BIN}/openstack', 'vqos', command, 'check',
                        name, '-f', 'json']),
            env=lab.environment(), capture_output=True, text=True,
            timeout=COMMAND_LIMIT_S, check=False)
        assert theirs.returncode == ours.returncode, theirs.stderr
        assert [(row['host'], row['fits'])
                for row in json.loads(theirs.stdout)] == [
            (row['host'], row['fits']) for row in json.loads(ours.stdout)]
        for said in (ours.stderr, theirs.stderr):
            assert f'{name} asks for nothing' not in said
            assert name in said


def test_a_cloud_of_clouds_yaml_is_asked(lab, server, tmp_path):
    """Without credentials in the environment."""
    given = lab.environment()
    path = tmp_path / 'clouds.yaml'
    # JSON is YAML, too.
    path.write_text(json.dumps({'clouds': {'lab': {
        'region_name': given['OS_REGION_NAME'],
        'auth': {name: given[f'OS_{name.upper()}'] for name in (
            'auth_url', 'username', 'password', 'project_name',
            'user_domain_id', 'project_domain_id')}}}}))
    environment = {name: value for name, value in given.items()
                   if not name.startswith('OS_')}
    environment['OS_CLIENT_CONFIG_FILE'] = str(path)
    for program in (['nova-vqos-manage', '--os-cloud', 'lab'],
                    ['openstack', '--os-cloud', 'lab', 'vqos']):
        done = subprocess.run(
            lab.inside([f'{services.BIN}/{program[0]}', *program[1:],
                        'host', 'list', '-f', 'json']),
            env=environment, capture_output=True, text=True,
            timeout=COMMAND_LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr
        assert [host['host'] for host in json.loads(done.stdout)] == [
            'fast', 'slow']


def test_both_hosts_are_listed(lab, server):
    fast, slow = manage(lab, 'host', 'list')
    assert (fast['host'], slow['host']) == ('fast', 'slow')
    assert fast['agent'] == slow['agent'] == 'alive'
    assert fast['coefficient'] > slow['coefficient'] == 1.0
    pcpus = len(lab.hosts['slow'].pcpus)
    assert slow['capacity_cu'] == 100 * pcpus < fast['capacity_cu']
    assert slow['profile'] != fast['profile']
    assert server.uuid in slow['servers']
    assert slow['used_cu'] == tempest.UNITS


def show_with_rates(lab, server):
    def shown():
        found = manage(lab, 'server', 'show', server.name)
        return found if found['delivered_cu'] is not None else None
    return process.wait_until(shown, RATES_LIMIT_S, 'rates of the server')


@pytest.mark.measured
def test_a_server_gets_no_more_than_its_units(lab, server):
    # A rate of ten seconds may begin with a full bucket: a quota more.
    assert 0 < show_with_rates(lab, server)[
        'delivered_cu'] < tempest.UNITS * 1.1


def test_a_server_is_shown_with_what_it_gets(lab, server):
    found = show_with_rates(lab, server)
    assert (found['server_uuid'], found['host']) == (server.uuid, 'slow')
    assert found['entitled_cu'] == tempest.UNITS
    assert found['right'] is True
    (listed,) = [row for row in manage(lab, 'server', 'list')
                 if row['server_uuid'] == server.uuid]
    assert listed['host'] == 'slow'


def test_calibrations_are_compared(lab, server, tmp_path):
    path = tmp_path / 'report.html'
    found = manage(lab, 'calibration', 'report', '--output', str(path))
    assert {row['host']: row['group'] for row in found} == {
        'slow': 1, 'fast': 2}
    assert lab.profiles.of('fast').id in path.read_text()
    assert os.path.getsize(path) > 10_000


def test_what_is_dead_is_seen_and_starts_again(lab, server):
    def dead():
        return {name for name, pid in lab.running() if pid is None}
    assert not dead()
    lab.nodes['fast'].stop(node.AGENT)
    try:
        done = run(lab, 'host', 'list')
        lab.nodes['slow'].stop(node.COMPUTE)
        services.SCHEDULER.kill()
        assert dead() == {'nova-scheduler', f'{node.AGENT} on fast',
                          f'{node.COMPUTE} on slow'}
    finally:
        lab.up()
    assert not dead()
    assert [row['agent'] for row in manage(lab, 'host', 'list')] == [
        'alive', 'alive']
    assert done.returncode == 1
    assert done.stderr.startswith('1 of 2 hosts gave no answer: fast (')
    assert [row['agent'] for row in json.loads(done.stdout)] == [
        'no answer', 'alive']
