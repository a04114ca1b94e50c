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


"""The driver on a host of which all but its own work is simulated."""

import os

import fixtures
from nova.compute import task_states
from nova.compute import vm_states
from nova.tests import fixtures as nova_fixtures
from nova.tests.unit import fake_flavor
from nova.tests.unit import fake_instance
from nova.virt.libvirt import config as vconfig

from nova import context
from nova.virt import fake
from nova_vqos import policy
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.unit import nova_case
from nova_vqos.virt import driver

NODE = 'compute1'
UUID = '6f70656e-0000-4000-8000-00000000cafe'
CLASS = policy.RESOURCE_CLASS


class DriverTestCase(nova_case.NovaTestCase):
    """A host of two pCPUs, of 150 CU each but for its profile."""

    REQUIRES_LOCKING = True

    def setUp(self):
        super().setUp()
        self.context = context.get_admin_context()
        self.flags(instances_path=self.useFixture(fixtures.TempDir()).path)
        self.flags(sysinfo_serial='none', virt_type='qemu', group='libvirt')
        self.libvirt = self.useFixture(nova_fixtures.LibvirtFixture())
        self.cgroups = self.useFixture(nova_fixtures.CGroupsFixture())
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      '_get_local_gb_info',
                      lambda *args: {'total': 100, 'used': 10, 'free': 90})
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      '_get_vcpu_available', lambda this: {0, 1})
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      'get_host_uptime', lambda this: '1 day')
        self.stub_out('nova.virt.libvirt.host.Host.get_memory_mb_used',
                      lambda this: 512)
        self.stub_out('nova_vqos.fingerprint.of_host',
                      lambda emulator=None: dict(host_files.FINGERPRINT))
        self.stub_out('nova_vqos.hooks.install.installed_path', lambda: None)
        self.stub_out('nova_vqos.tuning.host_cgroup_version', lambda: 1)
        self.files = self.useFixture(host_files.HostFiles(NODE))
        self.files.calibrate({'0-1': 1.5})
        self.flags(profile_path=self.files.profile_path,
                   agent_state_path=self.files.agent_state_path,
                   verification_path=self.files.verification_path,
                   compute_state_path=self.files.compute_state_path,
                   group='vqos')
        self.driver = driver.VqosLibvirtDriver(fake.FakeVirtAPI(), False)

    def make_flavor(self, extra_specs=None, vcpus=1):
        return fake_flavor.fake_flavor_obj(
            self.context, vcpus=vcpus, memory_mb=512,
            extra_specs=extra_specs or {}, expected_attrs=['extra_specs'])

    def make_instance(self, extra_specs=None, vcpus=1, **changes):
        instance = fake_instance.fake_instance_obj(
            self.context, uuid=UUID, vm_state=vm_states.BUILDING,
            task_state=task_states.SPAWNING, image_ref='',
            flavor=self.make_flavor(extra_specs, vcpus),
            expected_attrs=['system_metadata', 'metadata', 'resources',
                            'pci_devices', 'pci_requests', 'trusted_certs'])
        nothing = {'numa_topology': None, 'migration_context': None,
                   'vcpu_model': None}
        for name, value in (nothing | changes).items():
            setattr(instance, name, value)
        return instance

    def cputune(self, extra_specs, vcpus=1, instance=None):
        """(quota, period, shares) of a new guest."""
        guest = vconfig.LibvirtConfigGuest()
        guest.uuid = UUID
        self.driver._update_guest_cputune(
            guest, self.make_flavor(extra_specs, vcpus))
        return self.tunables(guest)

    def tunables(self, guest):
        if guest.cputune is None:
            return None
        return (guest.cputune.quota, guest.cputune.period,
                guest.cputune.shares)

    def lose_profile(self):
        os.unlink(self.files.profile_path)
