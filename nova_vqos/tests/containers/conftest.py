# SPDX-License-Identifier: Apache-2.0
"""Images of nova_vqos, and a host of the lab that runs them by podman.

NOVA_VQOS_CONTAINERS names the folder where tools/containers.sh has left the
wheel, constraints, a system of Debian, and an environment with Ansible.
"""

import os
import pathlib
import shutil
import signal
import sys

import pytest

# The lab is no part of the installed package.
sys.path.append(str(pathlib.Path(__file__).parents[3] / 'devstack'))

from nova_vqos.calibration import guest
from nova_vqos.tests.containers import engine as engines
from nova_vqos.tests.containers import role as roles
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import guests
from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import process

ROOT = '/var/lib/nova-vqos-container-tests'
PREFIX = 'vqosct'
CONTAINERFILE = project.TOP / 'deploy/containers/Containerfile'
LIBVIRT = 'nova-libvirt:vqos'
_DEVICES = """
mkdir -p /sys/fs/cgroup/devices
mount -t cgroup -o devices cgroup /sys/fs/cgroup/devices
"""


@pytest.fixture(scope='session')
def folder():
    """What tools/containers.sh has made."""
    return pathlib.Path(os.environ['NOVA_VQOS_CONTAINERS'])


@pytest.fixture(scope='session')
def engine():
    """podman, its store empty but for images of Debian and stand-ins."""
    requirement.need_programs('podman', 'runc')
    return engines.Engine(f'{ROOT}/podman')


@pytest.fixture(scope='session')
def images(engine, folder):
    """All images, of Kolla's layout and ours; they stay for the next run."""
    here = pathlib.Path(__file__).parent
    build = engine.build
    if 'localhost/debian' not in engine.run('images'):
        engine.run('import', str(folder / 'debian.tar'), 'localhost/debian')
    for target in 'nova-compute', 'nova-libvirt':
        build(here / 'Containerfile', target, target, str(folder),
              NOVA_VERSION=os.environ['NOVA_VERSION'])
    nova = 'localhost/nova-compute'
    build(CONTAINERFILE, 'nova', 'nova-compute:vqos', str(folder), NOVA=nova)
    build(CONTAINERFILE, 'agent', roles.IMAGE.partition('/')[2], str(folder),
          NOVA=nova)
    build(CONTAINERFILE, 'libvirt', LIBVIRT, str(folder), NOVA=nova,
          LIBVIRT='localhost/nova-libvirt')
    return engine


@pytest.fixture(scope='session')
def _mounted():
    """What all kernels have, but for some of test machines."""
    made = [path for path in ('/boot', '/lib/modules')
            if not os.path.exists(path)]
    for path in made:
        os.mkdir(path)
    yield
    for path in made:
        os.rmdir(path)


@pytest.fixture(scope='session')
def host(images, _mounted):
    """A host of the lab, whose libvirtd runs in nova_libvirt's container."""
    requirement.need('; '.join(hosts.missing_requirements(slow=False)))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    network = netns.Network(PREFIX)
    made = hosts.Host('fast', os.sched_getaffinity(0), root=f'{ROOT}/lab',
                      prefix=PREFIX)

    def remove():
        made.remove()
        network.remove()
        shutil.rmtree(f'{ROOT}/lab', ignore_errors=True)
        for name in 'machine', 'libpod_parent':
            process.run(['find', f'/sys/fs/cgroup/devices/{name}', '-depth',
                         '-type', 'd', '-exec', 'rmdir', '{}', '+'],
                        check=False)
    remove()
    try:
        network.create()
        made.start()
        made.stop_libvirtd()
        if made.hierarchy.version == 1:
            # No host of the lab has it; runc needs it.
            made.run(['sh', '-euc', _DEVICES])
        guests.build_image(f'{ROOT}/lab')
        start_libvirt(images, made)
        yield made
    finally:
        remove()


def start_libvirt(engine, host):
    """Start libvirtd as Kolla-Ansible does, with our images and mounts."""
    kernels = os.path.dirname(guest.find_kernel())
    volumes = [
        '/run:/run', '/dev:/dev', '/sys/fs/cgroup:/sys/fs/cgroup',
        '/lib/modules:/lib/modules:ro', '/var/lib/libvirt:/var/lib/libvirt',
        # nova_libvirt_extra_volumes of the guide.
        '/etc/nova-vqos:/etc/nova-vqos',
        # Of the lab: what its guests boot, and how its QEMU runs.
        f'{ROOT}/lab:{ROOT}/lab', f'{kernels}:{kernels}:ro',
        *(f'/etc/libvirt/{name}:/etc/libvirt/{name}:ro'
          for name in ('libvirtd.conf', 'qemu.conf'))]
    running = host.popen(
        [*engine.argv, 'run', '--rm', '--name=nova_libvirt', '--privileged',
         '--pid=host', '--cgroupns=host', '--network=host',
         *(f'--volume={one}' for one in volumes), f'localhost/{LIBVIRT}',
         '/usr/sbin/libvirtd'], log='nova_libvirt')
    try:
        process.wait_until(
            lambda: host.run(['virsh', '-c', 'qemu:///system', 'version'],
                             check=False).returncode == 0,
            60, 'libvirtd', alive=running.alive)
    finally:
        print(pathlib.Path(running.log).read_text())


@pytest.fixture(scope='session')
def role(host, folder, images):
    """Ansible's role, applied to the host."""
    return roles.Role(host, folder, images)


@pytest.fixture(autouse=True)
def _no_guests_stay(request):
    yield
    if 'host' in request.fixturenames:
        guests.destroy_all(request.getfixturevalue('host'))
