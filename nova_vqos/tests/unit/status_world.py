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

"""A machine below a directory, with nothing wrong until a test breaks it."""

import configparser
import dataclasses
import datetime
import json
import os

from nova_vqos import fingerprint
from nova_vqos import profile as profiles
from nova_vqos import version
from nova_vqos.cmd import status
from nova_vqos.hooks import install
from nova_vqos.hooks import libvirt
from nova_vqos.quantum import classes
from nova_vqos.quantum import proof
from nova_vqos.status import catalogue
from nova_vqos.status import findings
from nova_vqos.status import unit
from nova_vqos.status import worlds
from nova_vqos.tests import make_profiles
from nova_vqos.tests import project

Code = findings.Code

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
BUS = 'rabbit://nova:secret@bus:5672/'
BOOTED_S = 1_700_000_000

NOVA_CONF = 'etc/nova/nova.conf'
OWN_CONF = 'etc/nova-vqos/nova-vqos.conf'
HOOK_CONF = 'etc/nova-vqos/hook.conf'
HOOK = 'etc/libvirt/hooks/qemu.d/90-nova-vqos'
PROFILE = 'etc/nova-vqos/profile.yaml'
STATE = 'run/nova-vqos/agent.json'
PROOF = 'run/nova-vqos/quantum.json'
LEDGER = 'var/lib/nova-vqos/ledger.sqlite'
UNIT = f'etc/systemd/system/{unit.NAME}'
SCX = 'sys/kernel/sched_ext'
CPU = 'sys/devices/system/cpu'
HALT_POLL = 'sys/module/kvm/parameters/halt_poll_ns'
BOOT_CONFIG = f'boot/config-{os.uname().release}'

_NOVA = {
    'DEFAULT': {'host': 'compute1', 'transport_url': BUS,
                'compute_driver': 'vqos.VqosLibvirtDriver'},
    'compute': {'cpu_shared_set': '0-1'},
    'filter_scheduler': {
        'available_filters': 'nova_vqos.scheduler.filter.VqosFilter',
        'enabled_filters': 'ComputeFilter, VqosFilter',
        'weight_classes': 'nova.scheduler.weights.all_weighers,'
                          'nova_vqos.scheduler.weigher.all_weighers'},
}
_OWN = {'DEFAULT': {'host': 'compute1', 'transport_url': BUS}}


class Machine:
    """A compute host and controller, all in one.

    :ivar nova: what World.ask_nova answers; an exception is raised
    :ivar answer: what World.ask_agent does, likewise
    :ivar libvirt: what World.ask_libvirt does, likewise
    """

    def __init__(self, root):
        self.root = root
        self.asked = [worlds.COMPUTE, worlds.CONTROLLER]
        self.kernel = '6.12.0-cloud'
        self.libvirt = 'libvirtd (libvirt) 9.0.0\n'
        self.nova = {'version': '34.0.0', 'driver': '', 'scheduler': '',
                     'validators': ''}
        self.answer = {'version': version.version(), 'wrong': []}
        self.configure(NOVA_CONF, _NOVA)
        self.configure(OWN_CONF, _OWN, mode=0o640)
        self.write(HOOK_CONF, '')
        self.write(HOOK, install.script(libvirt.DEFAULT_CONFIG), mode=0o755)
        self.write('proc/sys/kernel/random/boot_id', 'this-boot\n')
        self.write('proc/stat', f'cpu 1 2\nbtime {BOOTED_S}\n')
        self.write('proc/cpuinfo', 'model name : A\n')
        self.write(BOOT_CONFIG, 'CONFIG_IRQ_TIME_ACCOUNTING=y\n')
        self.write(HALT_POLL, '0\n')
        self.write('sys/fs/cgroup/cgroup.controllers', 'cpuset cpu memory\n')
        self.write(f'{SCX}/state', 'disabled\n')
        self.write(f'{CPU}/cpufreq/policy0/scaling_governor', 'performance\n')
        self.live()
        self.prove()
        self.write(LEDGER, '', mode=0o600)
        self.install_unit()
        self.calibrate(make_profiles.make_class({0, 1}, 1.0, width=0.01))

    def write(self, name, content, mode=0o644):
        """Write a file of the machine, and make its directories."""
        path = self.root / name
        for directory in reversed(path.relative_to(self.root).parents[:-1]):
            if not (self.root / directory).exists():
                (self.root / directory).mkdir(mode=0o755)
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def remove(self, name):
        (self.root / name).unlink()

    def configure(self, name, sections, mode=0o644):
        """Write a configuration file, with what is changed of another."""
        self.write(name, ''.join(
            f'[{section}]\n' + ''.join(
                f'{option} = {value}\n' for option, value in options.items())
            for section, options in sections.items()), mode)

    def change(self, name, section, **options):
        """Set options in a file; None takes one out."""
        parser = configparser.RawConfigParser()
        parser.optionxform = str
        parser.read(self.root / name)
        sections = {'DEFAULT': dict(parser.defaults())}
        for one in parser.sections():
            sections[one] = {
                key: parser.get(one, key) for key in parser[one]
                if key not in parser.defaults()}
        sections.setdefault(section, {}).update(options)
        sections[section] = {key: value for key, value
                             in sections[section].items()
                             if value is not None}
        mode = (self.root / name).stat().st_mode & 0o777
        self.configure(name, sections, mode)

    def live(self, ago_s=3, **changes):
        """Have the agent leave a sign of life."""
        seen_at = NOW - datetime.timedelta(seconds=ago_s)
        self.write(STATE, json.dumps({
            'seen_at': seen_at.isoformat(), 'hypervisor_connected': True,
            'alarms': [], **changes}))

    def prove(self, boot_id='this-boot', **outcomes):
        """Have the probe see what the kernel enforces."""
        self.write(PROOF, '')
        proof.store(proof.Proof(
            'Linux', boot_id, 1000, NOW.isoformat(), {
                name: proof.Outcome(slice_us, slice_us, True)
                for name, slice_us in classes.DEFAULT_SLICES_US.items()}
            | outcomes), str(self.root / PROOF))

    def install_unit(self, change=lambda text: text):
        """Have the unit of this release, and its programs, installed."""
        text = project.sample(f'etc/systemd/{unit.NAME}').read_text()
        self.write(UNIT, change(text))
        for name in 'probe', 'agent':
            self.write(f'usr/bin/nova-vqos-{name}', '', mode=0o755)

    def calibrate(self, *cpu_classes, **changes):
        """Have a profile made."""
        self.write(PROFILE, '')
        profiles.store(make_profiles.make_profile(
            'compute1', *cpu_classes, **{
                'fingerprint': fingerprint.of_host(sysroot=str(self.root)),
                **changes}), str(self.root / PROFILE))

    def run(self, pid, *argv, started_s=100):
        """Have a process run, from so long after the boot."""
        self.write(f'proc/{pid}/cmdline', '\0'.join(argv))
        ticks = started_s * os.sysconf('SC_CLK_TCK')
        self.write(f'proc/{pid}/stat', f'{pid} (a ) b) S ' + ' '.join(
            ['0'] * 18 + [str(ticks), '0']))

    @property
    def world(self):
        def answer(name):
            value = getattr(self, name)
            if isinstance(value, Exception):
                raise value
            return value
        made = status.world_of(self.asked, [], [], str(self.root))
        return dataclasses.replace(
            made, now=NOW, kernel=self.kernel, ask_nova=lambda: answer('nova'),
            ask_agent=lambda: answer('answer'),
            ask_libvirt=lambda: answer('libvirt'))

    def check(self, name):
        """:returns: the result of a check, by its name."""
        (check,) = (one for one in catalogue.CHECKS if one.name == name)
        return catalogue.run(check, self.world)
