# SPDX-License-Identifier: Apache-2.0
"""The lab is made ready for tempest."""

from collections.abc import Iterator
import contextlib
import os

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import changes
from nova_vqos_lab import cloud
from nova_vqos_lab import config
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles

# Units that each host has room for, and while a server is resized
# for half as many besides; and units of one vCPU that the fast host's pCPU can
# give and the slow one's cannot.
UNITS = 60
_TOO_FAST_UNITS = 150
# As fast as the machine is at the moment, see pace.py, is good enough there.
_TOLERANCE = 0.35
_PATH = os.path.join(paths.TEMPEST, 'tempest.conf')


def prepare(lab: cloud.Lab) -> None:
    """Make what tempest needs, and configure it.

    :raises process.LabError: when a step fails
    """
    if os.path.exists(_PATH):
        return
    with process.stage('images, flavor, zone and configuration for tempest'):
        calibrated = lab.profiles.benchmark()
        with lab.cloud() as made:
            kernel, ramdisk = guest.find_kernel(), cloud.initramfs()
            images = [
                made.make_image(f'tempest-{name}', kernel, ramdisk, line)
                for name, line in (
                    ('idle', config.IDLE_GUEST),
                    ('work', guest.command_line(
                        events={'sysbench': calibrated.round_events})))]
            # Hosts that sell units take no servers without.
            made.make_flavor('tempest', {
                policy.UNITS_KEY: str(UNITS)})
            made.make_zone(f'only-{profiles.REFERENCE}', profiles.REFERENCE)
        config.write(os.path.join(paths.TEMPEST, '.stestr.conf'),
                     config.STESTR_CONF)
        config.write_ini(_PATH, config.tempest(
            *images, 'tempest', units=UNITS, several_vcpus=min(
                3, *(len(host.pcpus) for host in lab.hosts.values())),
            reference_score=calibrated.score,
            speed_tolerance=_TOLERANCE,
            too_fast_units=_TOO_FAST_UNITS, slow_host=profiles.REFERENCE,
            single_host_zone=f'only-{profiles.REFERENCE}'))


@contextlib.contextmanager
def guaranteeing(lab: cloud.Lab) -> Iterator[None]:
    """Have a host guarantee speed meanwhile, and tempest know it.

    :raises process.LabError: when a step fails
    """
    with open(_PATH, encoding='utf-8') as stream:
        usual = stream.read()
    try:
        config.write(_PATH, usual.replace(
            '[nova_vqos]\n', '[nova_vqos]\nguarantees_speed = true\n'))
        with changes.guaranteeing(lab, 'fast'):
            yield
    finally:
        config.write(_PATH, usual)
