# SPDX-License-Identifier: Apache-2.0
"""The CPU tuning in a guest's XML."""

from lxml import etree
from nova.virt.libvirt import config as vconfig
from oslo_log import log as logging

from nova_vqos import domain_xml
from nova_vqos import policy as policies
from nova_vqos.virt import admission

LOG = logging.getLogger(__name__)


class NotTuned(Exception):
    """A guest was made without its tuning."""


def candidate(guest, policy, shared_pcpus):
    """A guest, as its host is to admit it.

    An unpinned vCPU roams all that the host shares; one of a guest with a
    NUMA topology has those of its cell. Libvirt's hook and the agent read the
    same from the XML.

    :param guest: LibvirtConfigGuest
    :param policy: of the server
    :param shared_pcpus: those that the host shares
    """
    pins = guest.cputune.vcpupin if guest.cputune is not None else []
    pcpus = (frozenset().union(*(pin.cpuset for pin in pins)) if pins
             else frozenset(guest.cpuset or shared_pcpus))
    return admission.Candidate(
        guest.uuid, policy, pcpus, bool(pins),
        frozenset(frozenset(pin.cpuset) for pin in pins))


def check(xml):
    """Check that a new guest has what its flavor promises.

    :param xml: of its domain, made by Nova for a server that is new here
    :raises NotTuned: when it has no cap, or no weight
    """
    found = domain_xml.read(xml)
    policy = (None if found.extra_specs is None else
              policies.parse(found.extra_specs, found.vcpus))
    if policy is None or policy.units is None:
        return
    cputune = etree.fromstring(xml).find('./cputune')
    missing = [name for name in (
        ('shares', 'quota', 'period') if policy.cap == 'hard'
        else ('shares',)) if cputune is None or cputune.find(name) is None]
    if missing:
        raise NotTuned(
            f'the guest of {policy.units} CPU units was made without '
            f'{", ".join(missing)}: this release of Nova makes guests in '
            'another way than nova_vqos knows')


def apply(admitted, guest, policy):
    """Write what a server gets into its guest's configuration.

    :param admitted: nova_vqos.virt.admission.Admission
    :param guest: LibvirtConfigGuest
    :param policy: of the server
    """
    if admitted.pcpus is not None:
        pins = guest.cputune.vcpupin if guest.cputune is not None else []
        for pin in pins:
            pin.cpuset = set(pin.cpuset) & admitted.pcpus
        if not pins:
            guest.cpuset = set(admitted.pcpus)
    tune = admitted.tune
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
