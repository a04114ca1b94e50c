# SPDX-License-Identifier: Apache-2.0
"""Guests of the lab's cloud read their figures from Nova's metadata service.

    vendordata.start(lab)
    with lab.cloud() as cloud:
        reader = vendordata.Reader(lab, cloud)
        reader.wait_read()

The way from a guest to the agent of its host is the one of any cloud, but for
its beginning: an interface, and a proxy that says which server asks, where
others have a port and an agent of Neutron.
"""

from collections.abc import Iterator
import contextlib
import importlib.resources
import json
import os
import secrets
import sys
import typing as ty

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import administrator
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import guest_link
from nova_vqos_lab import host as hosts
from nova_vqos_lab import ioguest
from nova_vqos_lab import metadata_proxy
from nova_vqos_lab import openstack
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import services

#: Of the server whose guest reads, its image and its flavor.
NAME = 'vendordata'
CU = 30
#: What a guest reads, by what server show calls it.
FIELDS = {'entitled_cu': 'promised_cu', 'delivered_cu': 'delivered_cu',
          'throttled': 'withheld_share', 'vcpu_s': 'cpu_s',
          'throttled_s': 'withheld_s'}
_ANSWER = 'vqos-vendordata '
# Agents sample each ten seconds, and a rate takes two samples.
_READ_LIMIT_S = 240
_INTERVAL_S = 0.5
_PROXY_LIMIT_S = 20


def start(lab: clouds.Lab) -> None:
    """Start what guests ask, on the controller and on each host.

    What runs of it is left alone.

    :raises process.LabError: when a step fails
    """
    with process.stage("Nova's metadata service, nova-vqos-vendordata, and "
                       "each host's proxy for guests"):
        secret = _secret()
        config.write_ini(f'{paths.etc("vendordata")}/vendordata.conf',
                         config.vendordata())
        config.write_ini(f'{paths.etc("nova-metadata")}/nova.conf',
                         config.metadata(secret))
        config.copy_paste_ini('nova-metadata')
        openstack.together(
            lab.inside_network(lambda: services.start_api('metadata')),
            lab.inside_network(_start_service),
            lab.inside_network(lambda: _make_flavor_and_image(lab)),
            *(lambda host=host: _start_proxy(lab, host, secret)
              for host in lab.hosts.values()))


def _start_service() -> None:
    with openstack.connect() as cloud:
        openstack.make_user(cloud, 'vqos', 'admin')
    services.start_vendordata()


def _secret() -> str:
    """:returns: what Nova and the proxies share, the same for a lab's life"""
    path = os.path.join(paths.etc('nova-metadata'), 'secret')
    if not os.path.exists(path):
        config.write(path, secrets.token_hex(16))
    with open(path, encoding='ascii') as stream:
        return stream.read()


def _make_flavor_and_image(lab: clouds.Lab) -> None:
    with lab.cloud() as cloud:
        if cloud.has_image(NAME):
            return
        cloud.make_flavor(NAME, {policy.UNITS_KEY: str(CU)})
        kernel, modules = guest.find_kernel_with_modules()
        initrd = os.path.join(paths.data('guest'), 'initramfs-vendordata')
        guest.build_initramfs(
            initrd, tools=(), init=importlib.resources.files(
                'nova_vqos_lab').joinpath(
                    'vendordata_guest_init.sh').read_text(),
            contents=ioguest.module_files(modules))
        cloud.make_image(NAME, kernel, initrd, guest.command_line())


def _start_proxy(lab: clouds.Lab, host: hosts.Host, secret: str) -> None:
    guest_link.create(lab.network.of_host(host.name))
    path = os.path.join(paths.RUN, f'metadata-proxy-{host.name}.pid')
    running = process.Process.load(path)
    if running is None or not running.alive():
        running = host.popen(
            [sys.executable, '-m', 'nova_vqos_lab.metadata_proxy',
             guest_link.ADDRESS, config.url('metadata')],
            env={metadata_proxy.SECRET: secret,
                 'PYTHONPATH': os.path.dirname(os.path.dirname(__file__))},
            log=f'metadata-proxy-{host.name}')
        running.save(path)


class Reader:
    """A server whose guest reads, and computes all the time.

    :ivar server: it
    """

    def __init__(self, lab: clouds.Lab, cloud: client.Cloud) -> None:
        """Boot it, unless there is one.

        :raises process.LabError: when it does not start
        """
        self._lab = lab
        for server in cloud.servers():
            if server.name == NAME:
                self.server = server
                return
        self.server = cloud.boot(NAME, NAME, cloud.find_image(NAME))
        self.server.wait_active()
        guest_link.attach(lab.hosts[self.server.host], self.server.domain)

    def wait_read(self) -> tuple[dict[str, ty.Any], dict[str, ty.Any]]:
        """Wait until the guest reads its rates.

        :returns: what it read, and what nova-vqos-manage server show says of
            the same sample
        :raises process.LabError: when that does not come
        """
        def both() -> tuple[dict[str, ty.Any], dict[str, ty.Any]] | None:
            shown = self.show()
            if shown['delivered_cu'] is None:
                return None
            # The guest reads a sample until the next one is taken.
            for found in answers(self.server.console()):
                if found['cpu_s'] == shown['vcpu_s']:
                    return found, shown
            return None

        return process.wait_until(
            both, _READ_LIMIT_S, f'figures in the guest of {self.server.name}',
            log=services.VENDORDATA.log, interval_s=_INTERVAL_S)

    def show(self) -> dict[str, ty.Any]:
        """:returns: what nova-vqos-manage server show says"""
        return json.loads(administrator.run(
            self._lab, 'nova-vqos-manage', 'server', 'show',
            self.server.uuid, '-f', 'json'))


def answers(console: str) -> Iterator[dict[str, ty.Any]]:
    """:returns: what a guest read below vqos, by what it printed, without
        tries that failed
    """
    for line in console.splitlines():
        if line.startswith(_ANSWER):
            # The last one may be incomplete.
            with contextlib.suppress(ValueError, KeyError):
                found = json.loads(line.removeprefix(_ANSWER))['vqos']
                if found:
                    yield found


def table(found: dict[str, ty.Any], shown: dict[str, ty.Any]) -> str:
    """:returns: lines of what a guest read, and what server show said"""
    rows = [('vendor_data2.json', 'in the guest', 'server show', '')]
    rows += [(name, f'{found[name]}', f'{shown[field]}', field)
             for field, name in FIELDS.items()]
    return '\n'.join(
        f'{name:18} {read:>20} {said:>20} {field}'.rstrip()
        for name, read, said, field in rows)
