# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The devstack plugin, in the environment that devstack gives it.

devstack/run.sh beside this file calls the plugin's phases as devstack does,
with functions that keep devstack's contracts, on files below a directory of
its own. Of nova_vqos the hook and its installation, the agent (with libvirt's
test driver) and the loading of options, driver and filter are the real ones.
The calibration, pip, packages, systemd and Placement are not.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys

from nova.conf import compute as nova_compute_conf
from nova.conf import scheduler as nova_scheduler_conf
from nova.scheduler import filters as nova_filters
from oslo_config import cfg
import pytest

import nova
from nova_vqos import profile as profiles
from nova_vqos.conf import agent as agent_conf
from nova_vqos.conf import vqos as vqos_conf
from nova_vqos.hooks import rewrite
from nova_vqos.tests import project
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.tests.unit import test_profile

TOP = project.TOP
PLUGIN = TOP / 'devstack'
GUIDE = TOP / 'doc' / 'source' / 'admin' / 'devstack.rst'
RUN = pathlib.Path(__file__).parent / 'devstack' / 'run.sh'
PROGRAMS = pathlib.Path(sys.executable).parent
TIMEOUT_S = 120

ALL_IN_ONE = 'n-api,n-cond,n-sch,n-cpu,placement-api,tempest'
SUBNODE = 'n-cpu,placement-client'
CONTROLLER = 'n-api,n-cond,n-sch,placement-api'
# Where it is not what the test is about.
NO_AGENT = {'DISABLED_SERVICES': 'vqos-agent'}

FILTER = 'VqosFilter'
FILTER_CLASS = 'nova_vqos.scheduler.filter.VqosFilter'
ALL_FILTERS = 'nova.scheduler.filters.all_filters'
# What the phases write but what is to be the same after a second run: the
# process, and the record, logs and counters of the harness.
CHANGING = re.compile(r'harness/.*|run/nova-vqos/agent\.(json|lock)|'
                      r'var/lib/nova-vqos/ledger\.sqlite.*')

pytestmark = [
    pytest.mark.skipif(not (PLUGIN / 'plugin.sh').exists(),
                       reason='devstack is told of checkouts alone'),
    pytest.mark.skipif(
        not all(map(shutil.which, ('awk', 'bash', 'setsid'))),
        reason='bash, awk and setsid are needed'),
]


class Machine:
    """A machine that devstack stacks, below a directory."""

    def __init__(self, root, services=ALL_IN_ONE, **settings):
        self.root = root
        self.nova_conf = root / 'etc/nova/nova.conf'
        self.nova_cpu_conf = root / 'etc/nova/nova-cpu.conf'
        self.conf_dir = root / 'etc/nova-vqos'
        self.agent_conf = self.conf_dir / 'nova-vqos.conf'
        self.profile = self.conf_dir / 'profile.yaml'
        self.hook = root / 'etc/libvirt/hooks/qemu.d/90-nova-vqos'
        self.link = root / 'opt/stack/nova/nova/virt/vqos'
        self.tempest_conf = root / 'opt/stack/tempest/etc/tempest.conf'
        self.settings = {
            'ROOT': root, 'CHECKOUT': TOP, 'PROGRAMS': PROGRAMS,
            'PYTHON': sys.executable, 'ENABLED_SERVICES': services,
            'NOVA_PACKAGE': pathlib.Path(nova.__file__).parent,
            'NOVA_VQOS_TIMEOUT': 60,
            # Otherwise Nova is imported to learn its defaults: a second.
            'NOVA_FILTERS': 'ComputeFilter',
        } | settings
        self.devstack('prepare')
        profiles.store(test_profile.make_profile(),
                       str(root / 'harness/profile.yaml'))

    def devstack(self, mode, fails=False, **settings):
        """Run a mode of run.sh.

        :returns: what it wrote to standard error
        """
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(('NOVA', 'PYTHON', 'OS_'))}
        given = self.settings | settings
        done = subprocess.run(
            [str(RUN), mode], cwd='/', capture_output=True, text=True,
            env=environment | {name: str(value)
                               for name, value in given.items()},
            timeout=TIMEOUT_S, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr

    def record(self):
        """The calls that would have reached the machine, since last asked."""
        path = self.root / 'harness/record'
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def tree(self):
        """{path: what it is} of everything that is to stay the same."""
        return {name: _look(path)
                for path in sorted(self.root.rglob('*'))
                if not CHANGING.fullmatch(
                    name := str(path.relative_to(self.root)))}

    def agent_pid(self):
        """Of the agent that runs, None if none does."""
        path = self.root / 'harness/vqos-agent.pid'
        if not path.exists():
            return None
        pid = int(path.read_text())
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        return pid

    def options(self, path):
        """A file as Nova's services and the agent read it."""
        conf = cfg.ConfigOpts()
        nova_compute_conf.register_opts(conf)
        nova_scheduler_conf.register_opts(conf)
        vqos_conf.register_opts(conf)
        agent_conf.register_opts(conf)
        conf.register_opt(cfg.StrOpt('transport_url'))
        if path == self.agent_conf:
            agent_conf.register_host_opts(conf)
        conf(['--config-file', str(path)], default_config_files=[])
        return conf


def _look(path):
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path)
    content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
    return oct(status.st_mode), status.st_uid, content


@pytest.fixture
def machine(tmp_path):
    """Makes machines; no process of theirs is left."""
    made = []

    def make(*args, **settings):
        root = tmp_path / f'machine{len(made)}'
        root.mkdir()
        made.append(Machine(root, *args, **settings))
        return made[-1]

    yield make
    for each in made:
        pid = each.agent_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope='module')
def untouched(tmp_path_factory):
    """A machine that no test changes."""
    return Machine(tmp_path_factory.mktemp('untouched'))


def enabled_filters(conf):
    return conf.filter_scheduler.enabled_filters


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code], cwd='/', text=True,
        env=os.environ | environment, capture_output=True, check=False,
        timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_all_in_one(machine):
    host = machine(NOVA_VQOS_RESERVED_CU=50, NOVA_VQOS_PERIOD_US=80000,
                   NOVA_FILTERS='')
    before = host.tree()
    stock_filters = enabled_filters(host.options(host.nova_conf))
    host.record()

    host.devstack('stack')
    first = host.tree()
    assert host.record() == [
        'install_package sysbench',
        f'setup_develop {TOP}',
        'pip_install_gr osc-placement',
        'restart_service libvirtd',
        f'nova-vqos-calibrate cpu --output {host.profile} '
        '--reference devstack',
        f'run_process vqos-agent {host.root}/usr/local/bin/nova-vqos-agent '
        f'--config-file {host.agent_conf}  root']
    for path in (host.nova_conf, host.nova_cpu_conf):
        options = host.options(path)
        assert options.compute_driver == 'vqos.VqosLibvirtDriver'
        assert options.vqos.profile_path == str(host.profile)
        assert options.vqos.reserved_cu == 50
        assert options.vqos.period_us == 80000
    assert host.options(
        host.nova_conf).vqos.servers_without_units == 'allow'
    _check_filters(host, [*stock_filters, FILTER])
    _check_agent(host)
    _check_hook(host)
    assert host.link.resolve() == TOP / 'nova/virt/vqos'
    tempest = host.tempest_conf.read_text()
    assert 'scheduler_enabled_filters = ComputeFilter,VqosFilter' in tempest
    assert 'units = 60\n' in tempest
    assert 'reference_score = ' in tempest

    # A second stack.sh, once on its own files, once on new ones.
    for mode in ('phases', 'stack'):
        pid = host.agent_pid()
        host.devstack(mode)
        assert host.tree() == first, mode
        # Measured once, libvirt restarted once, one agent.
        assert [line.split()[0] for line in host.record()] == [
            'install_package', 'setup_develop', 'pip_install_gr',
            'stop_process', 'run_process']
        assert host.agent_pid() not in (None, pid)

    host.devstack('unstack')
    assert host.agent_pid() is None
    assert host.tree() == first
    host.devstack('unstack')

    for _again in range(2):
        host.devstack('clean')
        _check_clean(host, before)
        assert host.record()[-1] == 'pip_uninstall nova_vqos'
        assert enabled_filters(
            host.options(host.nova_conf)) == stock_filters


def _check_filters(host, expected):
    options = host.options(host.nova_conf)
    assert enabled_filters(options) == expected
    available = options.filter_scheduler.available_filters
    assert available[-1] == FILTER_CLASS
    assert available.count(FILTER_CLASS) == 1
    # As the scheduler does.
    found = nova_filters.HostFilterHandler().get_matching_classes(available)
    assert set(expected) <= {each.__name__ for each in found}


def _check_agent(host, cell='nova_cell1?a=1&b=2'):
    options = host.options(host.agent_conf)
    nova_options = host.options(host.nova_cpu_conf)
    assert options.transport_url == f'rabbit://u:p@127.0.0.1:1/{cell}'
    assert options.transport_url == nova_options.transport_url
    assert dict(options.vqos) == dict(nova_options.vqos)
    assert dict(options.vqos_agent) == dict(nova_options.vqos_agent) | {
        'libvirt_uri': 'test:///default',
        'lock_path': str(host.root / 'run/nova-vqos/agent.lock'),
        'ledger_path': str(host.root / 'var/lib/nova-vqos/ledger.sqlite')}
    assert 'heartbeat_rate = 3\n' in host.agent_conf.read_text()
    assert host.agent_conf.stat().st_mode & 0o007 == 0
    state = json.loads(pathlib.Path(options.vqos.agent_state_path).read_text())
    assert state['host'] == options.host
    assert state['pid'] == host.agent_pid()


def _check_hook(host):
    """As libvirt runs it, on a guest whose units it knows."""
    settings = rewrite.load_settings(str(host.conf_dir / 'hook.conf'))
    assert settings.error == ''
    assert settings.profile_path == str(host.profile)
    options = host.options(host.agent_conf)
    assert rewrite.periods(settings) == vqos_conf.periods(options)
    done = subprocess.run(
        [str(host.hook), 'server', 'migrate', 'begin', '-'],
        input=test_domain_xml.MIGRATABLE, capture_output=True, check=False,
        timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert f'<period>{options.vqos.period_us}</period>' in str(done.stdout)


def _check_clean(host, before):
    """Nothing is left, and Nova's files say what they said before."""
    after = host.tree()
    files = {str(path.relative_to(host.root))
             for path in (host.nova_conf, host.nova_cpu_conf,
                          host.tempest_conf)}
    assert {name: each for name, each in after.items()
            if name not in files} == {
        name: each for name, each in before.items() if name not in files}
    assert after.keys() == before.keys()
    for name in files & after.keys():
        assert 'vqos' not in (host.root / name).read_text().lower()
        assert set(after[name][2].split(b'\n')) >= set(
            before[name][2].split(b'\n')), name
    assert not (host.root / 'run/nova-vqos').exists()


def test_nova_loads_the_driver_through_the_link(machine):
    host = machine(SUBNODE, NOVA_VQOS_REFERENCE='here', **NO_AGENT)
    host.devstack('stack')
    # As nova-compute does: below nova.virt, by compute_driver.
    driver = host.options(host.nova_cpu_conf).compute_driver
    found, base = run_python(
        'import importlib, sys\n'
        'from nova.virt import driver\n'
        f'module, _, name = "nova.virt.{driver}".rpartition(".")\n'
        'found = importlib.import_module(module)\n'
        'assert issubclass(getattr(found, name), driver.ComputeDriver)\n'
        'print(found.__file__, sys.modules["nova"].__path__[0])',
        PYTHONPATH=str(host.root / 'opt/stack/nova'))
    assert pathlib.Path(found).parent == host.link
    assert base == str(host.root / 'opt/stack/nova/nova')


def test_subnode(machine):
    profile = machine(CONTROLLER).root / 'harness/profile.yaml'
    host = machine(SUBNODE, NOVA_VQOS_AGAINST=profile)
    before = host.tree()
    host.devstack('stack')
    first = host.tree()
    assert (f'nova-vqos-calibrate cpu --output {host.profile} '
            f'--against {profile}') in host.record()
    # No scheduler here: what nova.conf says of filters is as it was.
    assert 'available' not in host.nova_conf.read_text()
    assert enabled_filters(host.options(host.nova_conf)) == ['ComputeFilter']
    assert host.options(host.nova_cpu_conf).compute_driver == (
        'vqos.VqosLibvirtDriver')
    _check_agent(host)
    _check_hook(host)
    host.devstack('stack')
    assert host.tree() == first
    host.devstack('unstack')
    assert host.agent_pid() is None
    host.devstack('clean')
    _check_clean(host, before)


def test_controller_without_compute(machine):
    host = machine(CONTROLLER)
    before = host.tree()
    host.record()
    host.devstack('stack')
    assert host.record() == [f'setup_develop {TOP}']
    options = host.options(host.nova_conf)
    assert options.compute_driver == 'libvirt.LibvirtDriver'
    assert FILTER in enabled_filters(options)
    for path in (host.conf_dir, host.hook, host.link, host.nova_cpu_conf):
        assert not path.exists()
    host.devstack('clean')
    _check_clean(host, before)


def test_no_nova(machine):
    host = machine('keystone,mysql')
    before = host.tree()
    host.devstack('stack')
    assert host.record() == []
    assert host.tree() == before


@pytest.mark.parametrize(('enabled', 'available'), [
    ('ComputeFilter, SameHostFilter', ''),
    ('SameHostFilter,VqosFilter', f'{ALL_FILTERS} {FILTER_CLASS}'),
    ('ComputeFilter', 'nova.scheduler.filters.compute_filter.ComputeFilter'),
])
def test_filters_that_are_set_stay(machine, enabled, available):
    host = machine(CONTROLLER, NOVA_FILTERS=enabled,
                   AVAILABLE_FILTERS=available)
    host.devstack('stack')
    names = enabled.replace(' ', '').split(',')
    _check_filters(host, [name for name in names if name != FILTER]
                   + [FILTER])
    found = host.options(host.nova_conf).filter_scheduler.available_filters
    assert found[:-1] == [name for name in available.split()
                          if name != FILTER_CLASS] or [ALL_FILTERS]
    host.devstack('clean')
    assert enabled_filters(host.options(host.nova_conf)) == [
        name for name in names if name != FILTER]


def test_cells_without_a_bus_of_their_own(machine):
    host = machine(CELLSV2_SETUP='singleconductor')
    host.devstack('stack')
    options = host.options(host.agent_conf)
    assert options.transport_url == 'rabbit://u:p@127.0.0.1:1/'
    assert not host.nova_cpu_conf.exists()


def test_older_devstack_copies_the_file_late(machine):
    host = machine(NOVA_CPU_CONF_IS='late')
    host.devstack('stack')
    assert host.options(host.nova_cpu_conf).compute_driver == (
        'vqos.VqosLibvirtDriver')
    _check_agent(host)
    first = host.tree()
    host.devstack('stack')
    assert host.tree() == first


def test_agent_and_hook_get_what_local_conf_gives_nova_compute(machine):
    host = machine(POST_CONFIG='\n'.join(
        f'{file} {option}' for option in (
            'DEFAULT host compute7', 'vqos period_us 100000',
            'vqos quantum_slices cache:60000',
            'vqos cache_max_period_us 300000',
            'vqos_agent topic elsewhere')
        for file in ('NOVA_CONF', 'NOVA_CPU_CONF')))
    host.devstack('stack')
    options = host.options(host.agent_conf)
    assert options.host == 'compute7'
    assert options.vqos.period_us == 100000
    assert options.vqos.quantum_slices == {'cache': '60000'}
    assert options.vqos.cache_max_period_us == 300000
    assert options.vqos_agent.topic == 'elsewhere'
    _check_agent(host)
    _check_hook(host)


def test_calibration_is_as_asked_for(machine):
    host = machine(SUBNODE, NOVA_VQOS_REFERENCE='gold', LIBVIRT_TYPE='qemu',
                   NOVA_VQOS_IN_GUEST='yes', **NO_AGENT,
                   POST_CONFIG='NOVA_CPU_CONF compute cpu_shared_set 2-3')
    host.record()
    host.devstack('stack')
    record = host.record()
    assert record[0] == 'install_package sysbench busybox-static cpio'
    calibrate = (f'nova-vqos-calibrate cpu --output {host.profile} '
                 '--reference gold --in-guest --virt-type qemu --pcpus ')
    assert f'{calibrate}2-3' in record
    host.devstack('stack', NOVA_VQOS_RECALIBRATE='True', NOVA_VQOS_PCPUS='4')
    assert f'{calibrate}4' in host.record()


def test_without_calibration(machine):
    host = machine(SUBNODE, NOVA_VQOS_CALIBRATE='False')
    host.devstack('stack')
    assert not any('calibrate' in line for line in host.record())
    assert host.agent_pid() is not None
    assert not host.profile.exists()


def test_agent_disabled_by_the_user(machine):
    host = machine(**NO_AGENT)
    host.devstack('stack')
    assert host.agent_pid() is None
    assert not any('run_process' in line for line in host.record())
    assert host.hook.exists()


def test_changed_settings_take_effect_at_the_next_stack(machine):
    host = machine(**NO_AGENT)
    host.devstack('stack')
    host.devstack('stack', NOVA_VQOS_RESERVED_CU=7,
                  NOVA_VQOS_SERVERS_WITHOUT_UNITS='refuse',
                  NOVA_VQOS_HOOK_ON_ERROR='refuse')
    options = host.options(host.nova_cpu_conf)
    assert options.vqos.reserved_cu == 7
    assert host.options(
        host.nova_conf).vqos.servers_without_units == 'refuse'
    assert rewrite.load_settings(
        str(host.conf_dir / 'hook.conf')).on_error == 'refuse'


@pytest.mark.parametrize(('settings', 'says'), [
    ({'LIBVIRT_TYPE': 'lxc'}, 'LIBVIRT_TYPE is'),
    ({'VIRT_DRIVER': 'fake'}, 'VIRT_DRIVER is'),
    ({'NOVA_VQOS_PERIOD_US': '50 ms'}, 'NOVA_VQOS_PERIOD_US is'),
    ({'NOVA_VQOS_PERIOD_US': '1000001'}, 'NOVA_VQOS_PERIOD_US is'),
    ({'NOVA_VQOS_PERIOD_US': '999'}, 'NOVA_VQOS_PERIOD_US is'),
    ({'NOVA_VQOS_RESERVED_CU': '-1'}, 'NOVA_VQOS_RESERVED_CU is'),
    ({'NOVA_VQOS_SERVERS_WITHOUT_UNITS': 'some'},
     'NOVA_VQOS_SERVERS_WITHOUT_UNITS is'),
    ({'NOVA_VQOS_HOOK_ON_ERROR': 'panic'}, 'NOVA_VQOS_HOOK_ON_ERROR is'),
    ({'NOVA_VQOS_AGAINST': '/nowhere'}, 'NOVA_VQOS_AGAINST is'),
    ({'NOVA_VQOS_AGAINST': '/etc/hosts', 'NOVA_VQOS_REFERENCE': 'a'},
     'NOVA_VQOS_REFERENCE and NOVA_VQOS_AGAINST'),
    ({'ENABLED_SERVICES': SUBNODE}, 'NOVA_VQOS_AGAINST is not set'),
])
def test_wrong_settings_stop_before_anything_is_done(untouched, settings,
                                                     says):
    before = untouched.tree()
    assert f' {says}' in untouched.devstack('stack', fails=True, **settings)
    assert untouched.tree() == before
    assert untouched.record() == []


@pytest.mark.parametrize(('settings', 'says'), [
    ({'COMPUTE_DRIVER': 'zvm.ZVMDriver'}, "compute_driver in .* is 'zvm"),
    ({'CALIBRATION_FAILS': 1}, 'NOVA_VQOS_CALIBRATE=False'),
    ({'NOVA_VQOS_PYTHON': '/bin/false', 'NOVA_FILTERS': ''},
     'NOVA_VQOS_PYTHON'),
    ({'POST_CONFIG': 'NOVA_CONF filter_scheduler enabled_filters A'},
     'enabled_filters in .* has no VqosFilter'),
    ({'POST_CONFIG': 'NOVA_CPU_CONF DEFAULT compute_driver fake.FakeDriver'},
     "compute_driver in .* is 'fake"),
    ({'NOVA_VQOS_PROVIDER': 'another', 'NOVA_VQOS_TIMEOUT': 1},
     'of another after NOVA_VQOS_TIMEOUT'),
    ({'REPORTED_RESERVED': 200, 'NOVA_VQOS_TIMEOUT': 1},
     'Placement has no CUSTOM_VQOS_CPU_UNIT'),
])
def test_what_goes_wrong_later_is_told(machine, settings, says):
    host = machine(**NO_AGENT)
    assert re.search(rf'\[ERROR\] .*{says}',
                     host.devstack('stack', fails=True, **settings))


def test_the_agent_that_does_not_start_is_told(machine):
    host = machine()
    (host.root / 'run/nova-vqos').write_text('in its place')
    assert 'journalctl -u devstack@vqos-agent' in host.devstack(
        'stack', fails=True, NOVA_VQOS_TIMEOUT=1)


@pytest.mark.parametrize('where', ['link', 'hook'])
def test_what_is_not_ours_stays(machine, where):
    host = machine()
    path = getattr(host, where)
    if where == 'link':
        path.mkdir()
    else:
        path.parent.mkdir()
        path.write_text('#!/bin/sh\n')
    before = host.tree()
    assert 'not ours' in host.devstack('stack', fails=True)
    host.devstack('clean')
    assert path.exists()
    _check_clean(host, before)


def test_clean_after_a_run_that_failed(machine):
    host = machine()
    before = host.tree()
    host.devstack('stack', fails=True, CALIBRATION_FAILS=1)
    host.devstack('clean')
    _check_clean(host, before)


def test_clean_leaves_what_others_put_beside_ours(machine):
    host = machine(**NO_AGENT)
    host.devstack('stack')
    theirs = (host.conf_dir / 'notes', host.hook.with_name('10-other'))
    for path in theirs:
        path.write_text('')
    host.devstack('clean')
    assert all(path.exists() for path in theirs)
    assert {path.name for path in host.conf_dir.iterdir()} == {'notes'}
    assert not host.hook.exists()


def test_clean_without_our_programs(machine):
    host = machine(**NO_AGENT)
    before = host.tree()
    host.devstack('stack')
    (host.root / 'usr/local/bin/nova-vqos-libvirt-hook').unlink()
    host.devstack('clean')
    _check_clean(host, before)


def test_defaults_are_those_of_an_installed_nova_vqos():
    text = (PLUGIN / 'settings').read_text()
    defaults = dict(re.findall(r'^(NOVA_VQOS_\w+)=\$\{\1:-(.*)\}$', text,
                               re.MULTILINE))
    assert defaults['NOVA_VQOS_CONF_DIR'] == os.path.dirname(
        profiles.DEFAULT_PATH)
    conf = cfg.ConfigOpts()
    vqos_conf.register_opts(conf)
    agent_conf.register_opts(conf)
    conf([], default_config_files=[])
    assert defaults['NOVA_VQOS_RUN_DIR'] == os.path.dirname(
        conf.vqos.agent_state_path)
    assert defaults['NOVA_VQOS_LIBVIRT_URI'] == conf.vqos_agent.libvirt_uri
    assert defaults['NOVA_VQOS_PERIOD_US'] == str(conf.vqos.period_us)
    assert defaults['NOVA_VQOS_RESERVED_CU'] == str(conf.vqos.reserved_cu)


def test_the_guide_names_each_setting_and_no_other():
    names = set(re.findall(r'^ *(NOVA_VQOS_\w+)=',
                           (PLUGIN / 'settings').read_text(), re.MULTILINE))
    assert set(re.findall(r'\bNOVA_VQOS_\w+', GUIDE.read_text())) == names


def test_all_devstack_functions_that_are_called_have_a_contract():
    # What neither the plugin nor the harness defines is a program.
    sources = [PLUGIN / 'plugin.sh', PLUGIN / 'settings',
               PLUGIN / 'lib/nova_vqos', RUN.with_name('functions.sh')]
    defined = re.findall(r'((?:^#.*\n)+)?^function (\w+) \{', '\n'.join(
        path.read_text() for path in sources), re.MULTILINE)
    assert len(defined) > 40
    for comment, name in defined:
        assert re.match(rf'# {name}\b', comment), name
