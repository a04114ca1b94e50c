# SPDX-License-Identifier: Apache-2.0
"""Extra specs in the form of a flavor, by a real Horizon and browser.

Horizon needs an environment of its own, with Selenium: the Python of
HORIZON_PYTHON, which tools/test.sh horizon makes.
"""

import json
import os
import pathlib
import subprocess

import pytest

from nova_vqos import policy
from nova_vqos.tests.cloud import test_tools
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement
from nova_vqos_lab import config
from nova_vqos_lab import daemons
from nova_vqos_lab import process

PYTHON = os.environ.get('HORIZON_PYTHON')
HERE = pathlib.Path(__file__).parent
PORT = 8080
COMMAND_LIMIT_S = 120
VALIDATED = '2.86'
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.nightly,
    pytest.mark.requires('' if PYTHON else 'HORIZON_PYTHON names no Python '
                         'with Horizon and Selenium: tools/test.sh horizon '
                         'makes one')]


@pytest.fixture(scope='module')
def horizon(lab, tmp_path_factory):
    """A Horizon of the lab's cloud, whose Glance has our definitions.

    :returns: its address
    """
    requirement.need_programs('chromium', 'chromedriver')
    lab.up()
    test_tools.load_metadefs(lab)
    address = f'{config.CONTROLLER}:{PORT}'
    env = {'DJANGO_SETTINGS_MODULE': 'horizon_settings',
           'PYTHONPATH': str(HERE), 'OS_AUTH_URL': config.url('keystone'),
           'NOVA_VQOS_STATIC_ROOT': str(tmp_path_factory.mktemp('static'))}
    for command in 'collectstatic --noinput', 'compress --force':
        subprocess.run([PYTHON, '-m', 'django', *command.split()],
                       env={**os.environ, **env}, check=True,
                       stdout=subprocess.DEVNULL, timeout=COMMAND_LIMIT_S)
    server = daemons.Daemon('horizon')
    # It gives away its static files, too.
    server.start(lab.inside([PYTHON, '-m', 'django', 'runserver',
                             '--noreload', '--insecure', address]), env=env)
    try:
        process.wait_until(
            lambda: answers(lab, address), 60, 'Horizon', log=server.log,
            alive=server.alive, interval_s=0.5)
        yield f'http://{address}'
    finally:
        server.kill()


def answers(lab, address):
    done = subprocess.run(
        lab.inside(['curl', '-sf', '-o', '/dev/null', f'http://{address}/']),
        timeout=COMMAND_LIMIT_S, check=False)
    return done.returncode == 0


@pytest.fixture
def form(lab, horizon, request):
    """The form of a flavor that has two vCPUs, and no extra specs yet."""
    flavor = request.node.name
    with lab.cloud() as cloud:
        cloud.make_flavor(flavor, {}, vcpus=2)

    def use(**arguments):
        done = subprocess.run(
            # A namespace of processes: no browser outlives it.
            lab.inside(['unshare', '--pid', '--fork', '--kill-child',
                        '--mount-proc', PYTHON, '-m',
                        'nova_vqos.tests.cloud.horizon_form']),
            input=json.dumps({'address': horizon, 'password': config.PASSWORD,
                              'flavor': flavor, **arguments}),
            capture_output=True, text=True, timeout=COMMAND_LIMIT_S,
            check=False, cwd=project.TOP)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return use


@pytest.fixture
def extra_specs(lab, request):
    """:returns: a function: what the same flavor has in Nova"""
    def shown():
        with lab.cloud() as cloud:
            return cloud.compute(
                'GET', f'/flavors/{request.node.name}/os-extra_specs').body[
                    'extra_specs']
    return shown


def definitions():
    return json.loads(project.sample(test_tools.METADEFS).read_text())


def test_offers_all_names_values_and_limits(form, extra_specs):
    found = form(namespace=definitions()['display_name'])
    assert found['fields'].keys() == set(policy.KEYS)
    for name, one in definitions()['properties'].items():
        field = found['fields'][name]
        assert field['value'] == one.get('default', '')
        assert field.get('enum') == one.get('enum')
        assert (field.get('min'), field.get('max')) == (
            one.get('minimum'), one.get('maximum'))
    # Numbers have no default: not to be saved as it is.
    assert found['end'] == dict.fromkeys(policy.NUMBERS, '')
    assert extra_specs() == {}


def test_what_it_saves_is_valid(lab, form, extra_specs):
    wanted = {policy.UNITS_KEY: '60', policy.CAP_KEY: 'floor',
              policy.QUANTUM_CLASS_KEY: 'io', policy.DD_BILLING_KEY: 'charge',
              policy.GUARANTEE_KEY: 'preferred',
              policy.WORK_KEY: 'integer:0.5,hash:0.5'}
    # Ceilings and bursts contradict a floor: their lines are removed.
    others = policy.NUMBERS.keys() - {policy.UNITS_KEY}
    saved = form(namespace=definitions()['display_name'], attempts=[wanted],
                 remove=sorted(others))
    assert (saved['refused'], saved['end']) == (
        [dict.fromkeys(others, '')], None)
    assert extra_specs() == wanted
    assert policy.parse(wanted, 2).units == 60
    with lab.cloud() as cloud:
        # Here Nova asks our validators, see below.
        assert cloud.compute(
            'POST', '/flavors/test_what_it_saves_is_valid/os-extra_specs',
            {'extra_specs': wanted}, VALIDATED).status == 200
    again = form(attempts=[{policy.UNITS_KEY: '80'}],
                 remove=[policy.WORK_KEY, policy.GUARANTEE_KEY])
    assert {name: one['value'] for name, one in again['fields'].items()
            } == wanted
    assert extra_specs() == {
        name: value for name, value in wanted.items()
        if name not in (policy.WORK_KEY, policy.GUARANTEE_KEY)
    } | {policy.UNITS_KEY: '80'}


def test_saves_no_bad_value(form, extra_specs):
    valid = {**dict.fromkeys(policy.NUMBERS, '100'), policy.WORK_KEY: 'auto'}
    numbers = ('0', '-1', '1.5', '2147483648', '')
    works = ('Integer', 'integer,hash', 'integer:', '')
    bad = [(key, value)
           for key, values in (
               *((key, numbers) for key in policy.NUMBERS),
               (policy.WORK_KEY, works)) for value in values]
    found = form(namespace=definitions()['display_name'],
                 attempts=[{**valid, key: value} for key, value in bad])
    assert [set(one or ()) for one in found['refused']] == [
        {key} for key, _value in bad]
    assert all(text for one in found['refused'] for text in one.values())
    assert extra_specs() == {}


def test_other_names_are_not_checked(lab, form, extra_specs):
    """As the guide says: Horizon asks Nova in a version that checks none."""
    wrong = {'vqos:limit': 'hard'}
    assert form(custom=wrong)['end'] is None
    assert extra_specs() == wrong
    with lab.cloud() as cloud:
        assert cloud.compute(
            'POST', '/flavors/test_other_names_are_not_checked/os-extra_specs',
            {'extra_specs': wrong}, VALIDATED).status == 400
