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

"""The CPU tuning in a guest's XML."""

from nova.virt.libvirt import config as vconfig
from oslo_log import log as logging

from nova_vqos import tuning
from nova_vqos import units
from nova_vqos.virt import admission

LOG = logging.getLogger(__name__)


def eligible_pcpus(guest, shared_pcpus):
    """The pCPUs that the vCPUs of a guest may run on.

    An unpinned vCPU roams all that the host shares; one of a guest with a
    NUMA topology has those of its cell. Libvirt's hook and the agent read the
    same from the XML.

    :param guest: LibvirtConfigGuest
    :param shared_pcpus: those that the host shares
    """
    pins = _pins_of(guest)
    if pins:
        return frozenset().union(*(pin.cpuset for pin in pins))
    return frozenset(guest.cpuset or shared_pcpus)


def confine(guest, find_pcpus):
    """Keep a guest on some pCPUs, but for one that has pins.

    Pins are those of a NUMA topology, and Nova's business.

    :param guest: LibvirtConfigGuest
    :param find_pcpus: gives the pCPUs; None: nothing to do
    """
    pcpus = None if _pins_of(guest) else find_pcpus()
    if pcpus is not None:
        guest.cpuset = set(pcpus)


def _pins_of(guest):
    return guest.cputune.vcpupin if guest.cputune is not None else []


def of_returning(uuid, policy, report, pcpus, *, periods):
    """The tuning of a server that has been on this host before.

    Such a server starts in any case: its promise was checked when it came,
    and its owner, who reboots it, has no part in what became of the host.

    :returns: a tuning; None for a server without units
    """
    if policy.units is None:
        return None
    try:
        tune = admission.tune(policy, report, pcpus, periods=periods)
    except admission.CannotServe as error:
        LOG.error('Server %(uuid)s starts without the cap for its %(units)d '
                  'CPU units, since it has been on this host before: '
                  '%(error)s', {'uuid': uuid, 'units': policy.units,
                                'error': error})
        return tuning.Tune(cap=None, shares=units.shares(
            policy.units, tuning.host_cgroup_version()))
    if not report.valid:
        LOG.warning('Server %(uuid)s starts with a cap for its %(units)d CPU '
                    'units by a profile that no longer holds: %(problem)s',
                    {'uuid': uuid, 'units': policy.units,
                     'problem': report.problem})
    return tune


def apply(tune, guest, policy):
    """Write a tuning into a guest's configuration.

    :param tune: None: nothing to write
    :param guest: LibvirtConfigGuest
    :param policy: that the tuning is of
    """
    if tune is None:
        return
    if guest.cputune is None:
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
    guest.cputune.shares = tune.shares
    if tune.cap is not None:
        guest.cputune.quota = tune.cap.quota_us
        guest.cputune.period = tune.cap.period_us
    LOG.info('Server %(uuid)s starts with %(cap)s for its %(units)d CPU units '
             'on %(vcpus)d vCPUs, shares %(shares)d',
             {'uuid': guest.uuid, 'units': policy.units,
              'vcpus': policy.vcpus, 'shares': tune.shares,
              'cap': 'no cap' if tune.cap is None else
              f'a cap of {tune.cap.quota_us}/{tune.cap.period_us} us'})
