# SPDX-License-Identifier: Apache-2.0
"""Whether a host can keep the promise of a flavor, where, and by which cap."""

import typing as ty

from oslo_log import log as logging

from nova_vqos import core_types
from nova_vqos import cputune
from nova_vqos import files
from nova_vqos import guarantee
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos import work

LOG = logging.getLogger(__name__)


class CannotServe(Exception):
    """This host cannot keep the promise; another may."""


class Candidate(ty.NamedTuple):
    """A server that is to run on a host.

    :ivar pcpus: where Nova would have its vCPUs run
    :ivar is_pinned: whether they have pins, which are those of a NUMA
        topology
    :ivar pins: these, of all vCPUs; none: they are not yet known
    """

    uuid: str
    policy: policies.ServerPolicy
    pcpus: frozenset[int]
    is_pinned: bool
    pins: frozenset[frozenset[int]] = frozenset()

    @property
    def in_one_type(self):
        """See :func:`nova_vqos.core_types.in_one_type`."""
        return core_types.in_one_type(self.policy, is_pinned=self.is_pinned)


class Former(ty.NamedTuple):
    """What a server had on this host before its guest was undone.

    :ivar cap: of each vCPU; None: it had no limit
    :ivar shares: its weight; None: the default
    :ivar pcpus: of vCPUs without pins; None: all that the host shares
    """

    cap: units.CpuCap | None
    shares: int | None
    pcpus: frozenset[int] | None


class Admission(ty.NamedTuple):
    """What a server gets on a host.

    :ivar pcpus: that it is confined to; None: it runs where Nova has it run
    :ivar tune: None: it has no units
    """

    pcpus: frozenset[int] | None = None
    tune: cputune.CpuTune | None = None


def admit(candidate, report, tracker, *, sale, periods):
    """What a server gets on a host that does not have it yet.

    :param report: :class:`nova_vqos.virt.host_state.HostReport` of the host
    :param tracker: its CoreTypeTracker
    :param sale: nova_vqos.room.Sale of the host; None: the sum of its servers
        is not counted
    :raises CannotServe: when the host cannot keep its promise
    """
    policy = candidate.policy
    for key, wanted, offered in (
            (policies.QUANTUM_CLASS_KEY, policy.quantum_class,
             report.agent.quantum_classes),
            (policies.DD_BILLING_KEY, policy.dd_billing,
             report.agent.dd_billing)):
        if wanted not in offered:
            raise CannotServe(
                f'{key} is {wanted!r}, and this host offers '
                f'{", ".join(offered)}')
    if policy.units is None:
        return Admission()
    if policy.project_ceiling_cu is not None and (
            not report.agent.keeps_ceilings):
        raise CannotServe(
            f'{policies.PROJECT_CEILING_KEY} is {policy.project_ceiling_cu}, '
            "and this host's agent does not keep it")
    if not report.valid:
        raise CannotServe(report.problem)
    try:
        if policy.mix is not None:
            policy.mix.check_intervals(report.wide_kinds)
        coefficient = report.profile.slowest(report.pcpus, policy.mix)
        if policy.guarantee == 'required':
            refusal = guarantee.refusal(
                units.share(policy.units, policy.vcpus, coefficient),
                policy.vcpus,
                units.pcpu_cu(report.profile.slowest(report.pcpus)),
                report.guarantee_cu)
            if refusal:
                raise CannotServe(
                    f'{policies.GUARANTEE_KEY} is required: {refusal}')
        if candidate.in_one_type:
            pcpus = tracker.choose(candidate, report, sale)
        else:
            pcpus = None
            tracker.check_pinned(candidate, report, sale)
        return Admission(pcpus, _tune(candidate, report, pcpus, periods))
    except (units.UnitsError, files.FileError) as error:
        # It may be too slow here, where there is room.
        tracker.forget_choice(candidate.uuid)
        raise CannotServe(
            f'{error}; CU of {policies.WORK_KEY} {policy.work}'
            if policy.work and not isinstance(
                error, work.KindMissing | work.KindUnsure)
            else str(error)) from error


def readmit(candidate, report, tracker, *, periods, former=None):
    """What a server gets on a host where it has been before.

    It starts in any case: its promise was checked when it came, and its
    owner, who reboots it, has no part in what became of the host.

    :param report: :class:`nova_vqos.virt.host_state.HostReport` of the host
    :param tracker: its CoreTypeTracker; None: the server stays on its pCPUs
    :param former: what the server had before; None: not known
    """
    cu = candidate.policy.units
    if cu is None:
        return Admission()
    pcpus = (tracker.choose_again(candidate, report)
             if tracker is not None and candidate.in_one_type else None)
    names = {'uuid': candidate.uuid, 'units': cu, 'problem': report.problem}
    try:
        if report.profile is None:
            raise files.FileInvalid(report.problem)
        tune = _tune(candidate, report, pcpus, periods)
    except (units.UnitsError, files.FileError) as error:
        names['problem'] = error
        cap = _kept_cap(candidate.policy, former, error)
        if cap is None:
            LOG.error('Server %(uuid)s starts without the cap for its '
                      '%(units)d CPU units: this host, where it has been '
                      'before, cannot give them: %(problem)s', names)
        else:
            LOG.error('Server %(uuid)s starts with its last cap for its '
                      '%(units)d CPU units: this host cannot compute it: '
                      '%(problem)s', names)
            if former.pcpus is not None and not candidate.is_pinned:
                # The cap is that of the pCPUs that it ran on.
                pcpus = former.pcpus & candidate.pcpus or pcpus
        tune = cputune.CpuTune(cap=cap, shares=units.shares(
            cu, cputune.host_cgroup_version()))
    else:
        if not report.valid:
            LOG.warning('Server %(uuid)s starts with a cap for its %(units)d '
                        'CPU units by a profile that no longer holds: '
                        '%(problem)s', names)
    return Admission(pcpus, tune)


def _kept_cap(policy, former, error):
    """The cap that a server keeps, since that of now cannot be computed.

    None where a whole pCPU is too slow for it: it would be slower still.
    """
    if (former is None or policy.cap != 'hard'
            or isinstance(error, units.HostTooSlow)):
        return None
    return former.cap


def _tune(candidate, report, pcpus, periods):
    return cputune.compute(
        candidate.policy, report.profile,
        candidate.pcpus if pcpus is None else pcpus,
        cgroup_version=cputune.host_cgroup_version(), periods=periods)
