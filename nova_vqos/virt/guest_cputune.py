# SPDX-License-Identifier: Apache-2.0
"""The CPU tuning in a guest's XML."""

from lxml import etree
from nova.virt.libvirt import config as vconfig
from oslo_log import log as logging

from nova_vqos import cputune
from nova_vqos import domain_xml
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.virt import admission

LOG = logging.getLogger(__name__)

# Of the kernel, and of a domain whose XML has a quota alone.
_DEFAULT_PERIOD_US = 100_000


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
    tuning = etree.fromstring(xml).find('./cputune')
    missing = [name for name in (
        ('shares', 'quota', 'period') if policy.cap == 'hard'
        else ('shares',)) if tuning is None or tuning.find(name) is None]
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
    _set(guest, tune.cap, tune.shares)
    LOG.info('Server %(uuid)s starts with %(cap)s for its %(units)d CPU units '
             'on %(vcpus)d vCPUs, shares %(shares)d',
             {'uuid': guest.uuid, 'units': policy.units,
              'vcpus': policy.vcpus, 'shares': tune.shares,
              'cap': 'no cap' if tune.cap is None else
              f'a cap of {tune.cap.quota_us}/{tune.cap.period_us} us'})


def keep(guest, former, flavor, error):
    """Give a guest what it had before, since its flavor is invalid.

    Without that knowledge it gets a weight alone, if its units can be read.

    :param guest: LibvirtConfigGuest, as stock Nova has it
    :param former: nova_vqos.virt.admission.Former; None: not known
    :param error: why the flavor is invalid
    """
    if former is None:
        former = admission.Former(None, _shares_of(flavor), None)
    _set(guest, former.cap, former.shares)
    LOG.error('Server %(uuid)s, which has been on this host before, starts '
              'with %(cap)s and shares %(shares)s, although its flavor is '
              'invalid: %(error)s',
              {'uuid': guest.uuid, 'error': error,
               'shares': former.shares or 'as by default',
               'cap': 'no cap' if former.cap is None else
               f'its last cap of {former.cap.quota_us}/'
               f'{former.cap.period_us} us'})


def former_of(guest):
    """What a server has, as long as there is a guest of it.

    :param guest: nova.virt.libvirt.guest.Guest
    :returns: nova_vqos.virt.admission.Former; None: it cannot be read
    """
    try:
        domain = domain_xml.read(guest.get_xml_desc())
    except Exception as error:
        # It is about to be undone: that must not fail for this.
        LOG.warning('The domain of server %(uuid)s cannot be read, its cap is '
                    'not known: %(error)s',
                    {'uuid': guest.uuid, 'error': error})
        return None
    return _former(domain)


def renewed(xml, policy, report, periods):
    """The XML of a guest that was saved, with the tuning of today.

    The guest stays on its pCPUs, but for the agent's own pins, which are made
    anew.

    :param xml: of a domain
    :param policy: of the server
    :param report: nova_vqos.virt.host_state.HostReport of the host
    :param periods: nova_vqos.cputune.Periods
    :raises nova_vqos.domain_xml.DomainXmlError: when it cannot be read
    """
    plain = domain_xml.without_limits(
        domain_xml.without_own_pins(xml.encode()))
    domain = domain_xml.read(plain)
    tune = admission.readmit(
        admission.Candidate(domain.uuid, policy, domain.pcpus or report.pcpus,
                            domain.pinned),
        report, None, periods=periods, former=_former(domain)).tune
    return domain_xml.with_cputune(
        plain, shares=tune.shares,
        period_us=tune.cap and tune.cap.period_us,
        quota_us=tune.cap and tune.cap.quota_us).decode()


def _former(domain):
    cap = None if domain.quota_us is None else units.CpuCap(
        domain.quota_us, domain.period_us or _DEFAULT_PERIOD_US)
    return admission.Former(cap, domain.shares, domain.cpuset)


def _set(guest, cap, shares):
    """Set what is given; the rest stays."""
    if cap is None and shares is None:
        return
    if guest.cputune is None:
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
    if shares is not None:
        guest.cputune.shares = shares
    if cap is not None:
        guest.cputune.quota = cap.quota_us
        guest.cputune.period = cap.period_us


def _shares_of(flavor):
    """The weight of its units alone; None: they are invalid, too."""
    try:
        policy = policies.parse(
            {policies.UNITS_KEY: flavor.extra_specs[policies.UNITS_KEY]},
            flavor.vcpus)
    except (KeyError, policies.PolicyError):
        return None
    return units.shares(policy.units, cputune.host_cgroup_version())
