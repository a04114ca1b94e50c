# SPDX-License-Identifier: Apache-2.0
"""A machine with cgroup v2: its libvirtd, its domain, and its hooks."""

import contextlib
import pathlib
import subprocess
import time

from nova_vqos import policy
from nova_vqos.hooks import install
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import make_profiles

NAME = 'vqos-v2'
UUID = '3a1f4b52-53c1-4d55-9d10-2f8c2f0a6f11'
CGROUPS = pathlib.Path('/sys/fs/cgroup')
LIBVIRT_ETC = pathlib.Path('/etc/libvirt')
RUN = pathlib.Path('/run/vqos')
WAIT_S = 60
INSTANCE = 'http://openstack.org/xmlns/libvirt/nova/1.1'

LIBVIRTD_CONF = """\
auth_unix_ro = "none"
auth_unix_rw = "none"
"""
# NOTE: no security driver and no virtlogd: this kernel has neither profiles
# nor, in this guest, a second daemon.
QEMU_CONF = """\
security_driver = "none"
user = "root"
group = "root"
namespaces = []
stdio_handler = "file"
"""
METADATA = f"""\
<n:instance xmlns:n="{INSTANCE}">
  <n:flavor name="f">
    <n:vcpus>2</n:vcpus>
    <n:extraSpecs>
      <n:extraSpec name="{policy.UNITS_KEY}">60</n:extraSpec>
      <n:extraSpec name="{policy.DD_BILLING_KEY}">%s</n:extraSpec>
    </n:extraSpecs>
  </n:flavor>
</n:instance>
"""
DOMAIN = f"""\
<domain type='qemu'>
  <name>{NAME}</name>
  <uuid>{UUID}</uuid>
  <metadata>{METADATA % 'off'}</metadata>
  <memory unit='MiB'>32</memory>
  <vcpu cpuset='0-1'>2</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{RUN}/disk'/>
      <target dev='hda' bus='ide'/>
    </disk>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""
# A boot sector that spins: jmp to itself, and the mark of a boot sector.
SPINNING_SECTOR = b'\xeb\xfe'.ljust(510, b'\0') + b'\x55\xaa'

# A hook of somebody else: notes that it was called, and with what cap.
FOREIGN_HOOK = """\
#!/bin/sh
quota=$(sed -n 's/.*<quota>\\(.*\\)<.quota>.*/\\1/p')
echo "{name} $2 $3 ${{quota:-none}}" >>{run}/calls
"""


def prepare():
    RUN.mkdir()
    (LIBVIRT_ETC / 'libvirtd.conf').write_text(LIBVIRTD_CONF)
    (LIBVIRT_ETC / 'qemu.conf').write_text(QEMU_CONF)
    (RUN / 'disk').write_bytes(SPINNING_SECTOR.ljust(1024 * 1024, b'\0'))
    calibrate()
    configure_hook('pass')
    install.install(str(LIBVIRT_ETC / 'hooks'), str(RUN / 'hook.conf'))
    for name in ('qemu', 'qemu.d/10-before', 'qemu.d/95-after'):
        path = LIBVIRT_ETC / 'hooks' / name
        path.write_text(FOREIGN_HOOK.format(name=name, run=RUN))
        path.chmod(0o755)


def make_profile(pcpus=frozenset({0, 1})):
    return make_profiles.make_profile(
        'v2', make_profiles.make_class(pcpus, 1.0),
        fingerprint={'tick_us': '4000'})


def calibrate(pcpus=frozenset({0, 1})):
    document.store(make_profile(pcpus), str(RUN / 'profile.yaml'))


def configure_hook(on_error):
    (RUN / 'hook.conf').write_text(
        f'[hook]\nprofile = {RUN}/profile.yaml\non_error = {on_error}\n')


@contextlib.contextmanager
def daemon():
    with (RUN / 'libvirtd.log').open('w') as log:
        process = subprocess.Popen(['libvirtd'], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(WAIT_S)


@contextlib.contextmanager
def connected_hypervisor(events):
    hypervisor = driver.LibvirtHypervisor()
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            hypervisor.connect(events.append)
            break
        except base.Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    yield hypervisor
    hypervisor.close()
