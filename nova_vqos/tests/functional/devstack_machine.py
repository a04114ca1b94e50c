# SPDX-License-Identifier: Apache-2.0
"""A machine that devstack stacks, for tests of the plugin.

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
from nova.scheduler import weights as nova_weights
from oslo_config import cfg
from placement.conf import placement as placement_conf
import pytest

import nova
from nova_vqos.conf import agent
from nova_vqos.conf import vqos
from nova_vqos.hooks import rewrite
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.tests.unit.profile import test_document

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
WEIGHERS = 'nova_vqos.scheduler.weigher.all_weighers'
ALL_WEIGHERS = 'nova.scheduler.weights.all_weighers'
# What the phases write but what is to be the same after a second run: the
# process, what it saw of the host, and the record, logs and counters of the
# harness.
CHANGING = re.compile(r'harness/.*|run/nova-vqos/.*\.(json|lock)|'
                      r'var/lib/nova-vqos/ledger\.sqlite.*')

MARKS = [
    project.needs_checkout,
    pytest.mark.requires(
        '' if all(map(shutil.which, ('awk', 'bash', 'setsid')))
        else 'bash, awk and setsid are needed'),
]


class Machine:
    """A machine that devstack stacks, below a directory."""

    def __init__(self, root, services=ALL_IN_ONE, **settings):
        self.root = root
        self.nova_conf = root / 'etc/nova/nova.conf'
        self.nova_cpu_conf = root / 'etc/nova/nova-cpu.conf'
        self.placement_conf = root / 'etc/placement/placement.conf'
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
        document.store(test_document.make_profile(),
                       str(root / 'harness/profile.yaml'))

    def devstack(self, *mode, fails=False, **settings):
        """Run a mode of run.sh.

        :returns: what it wrote to standard error
        """
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(('NOVA', 'PYTHON', 'OS_'))}
        given = self.settings | settings
        done = subprocess.run(
            [str(RUN), *mode], cwd='/', capture_output=True, text=True,
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
        vqos.register_opts(conf)
        agent.register_opts(conf)
        placement_conf.register_opts(conf)
        conf.register_opt(cfg.StrOpt('transport_url'))
        if path == self.agent_conf:
            agent.register_host_opts(conf)
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


def check_filters(host, expected):
    options = host.options(host.nova_conf)
    assert enabled_filters(options) == expected
    available = options.filter_scheduler.available_filters
    assert available[-1] == FILTER_CLASS
    assert available.count(FILTER_CLASS) == 1
    # As the scheduler does.
    found = nova_filters.HostFilterHandler().get_matching_classes(available)
    assert set(expected) <= {each.__name__ for each in found}


def check_weighers(host, expected):
    """The scheduler has these weighers, and finds ours."""
    names = host.options(host.nova_conf).filter_scheduler.weight_classes
    assert names == expected
    # As the scheduler does.
    found = nova_weights.HostWeightHandler().get_matching_classes(names)
    assert {'VqosQuantumWeigher', 'VqosUnitsWeigher'} <= {
        each.__name__ for each in found}


def check_agent(host, cell='nova_cell1?a=1&b=2'):
    options = host.options(host.agent_conf)
    nova_options = host.options(host.nova_cpu_conf)
    assert options.transport_url == f'rabbit://u:p@127.0.0.1:1/{cell}'
    assert options.transport_url == nova_options.transport_url
    assert dict(options.vqos) == dict(nova_options.vqos)
    assert dict(options.vqos_agent) == dict(nova_options.vqos_agent) | {
        'libvirt_uri': 'test:///default',
        'lock_path': str(host.root / 'run/nova-vqos/agent.lock'),
        'ledger_path': str(host.root / 'var/lib/nova-vqos/ledger.sqlite'),
        'quantum_proof_path': str(host.root / 'run/nova-vqos/quantum.json')}
    assert 'heartbeat_rate = 3\n' in host.agent_conf.read_text()
    assert host.agent_conf.stat().st_mode & 0o007 == 0
    assert os.path.exists(options.vqos_agent.quantum_proof_path)
    state = json.loads(pathlib.Path(options.vqos.agent_state_path).read_text())
    assert state['host'] == options.host
    assert state['pid'] == host.agent_pid()


def check_hook(host):
    """As libvirt runs it, on a guest whose units it knows."""
    settings = rewrite.load_settings(str(host.conf_dir / 'hook.conf'))
    assert settings.error == ''
    assert settings.profile_path == str(host.profile)
    options = host.options(host.agent_conf)
    assert rewrite.periods(settings) == vqos.periods(options)
    done = subprocess.run(
        [str(host.hook), 'server', 'migrate', 'begin', '-'],
        input=test_domain_xml.MIGRATABLE, capture_output=True, check=False,
        timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert f'<period>{options.vqos.period_us}</period>' in str(done.stdout)


def check_clean(host, before):
    """Nothing is left, and Nova's files say what they said before."""
    after = host.tree()
    files = {str(path.relative_to(host.root))
             for path in (host.nova_conf, host.nova_cpu_conf,
                          host.placement_conf, host.tempest_conf)}
    assert {name: each for name, each in after.items()
            if name not in files} == {
        name: each for name, each in before.items() if name not in files}
    assert after.keys() == before.keys()
    for name in files & after.keys():
        text = (host.root / name).read_text()
        assert 'vqos' not in text.lower()
        assert 'allocation_conflict' not in text
        assert set(after[name][2].split(b'\n')) >= set(
            before[name][2].split(b'\n')), name
    assert not (host.root / 'run/nova-vqos').exists()
