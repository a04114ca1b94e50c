# SPDX-License-Identifier: Apache-2.0
"""What is to be reserved for a server, from its units, its cap and its I/O."""

from fractions import Fraction
import functools
import typing as ty

from nova_vqos import guarantee
from nova_vqos import units
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent.caps import state
from nova_vqos.agent.guarantee import io_share


class Wanted(ty.NamedTuple):
    """What is to be reserved for a server, and for which of its threads.

    :ivar vcpu: for each vCPU
    :ivar io: for each thread that serves its I/O
    :ivar vcpus: numbers of those that are online
    :ivar reclaims: whether they may use what others leave unused
    :ivar split: what that follows from
    :ivar counted_share: of a pCPU, as the kernel counts it: what each vCPU is
        to have where it owes nothing for I/O
    :ivar whole_vcpu: the same once its runtime is rounded, and its threads of
        I/O have the least
    :ivar least_io: of a pCPU, that these threads have then
    """

    vcpu: units.CpuCap
    io: units.CpuCap
    vcpus: frozenset[int]
    reclaims: bool
    split: io_share.Split
    counted_share: Fraction
    whole_vcpu: Fraction
    least_io: Fraction

    @property
    def whole_pcpus(self) -> Fraction:
        """What the server is to have where it owes nothing for I/O."""
        return (self.whole_vcpu * len(self.vcpus)
                + self.least_io * guarantee.IO_THREADS)


def make(server: servers.Server, cap: state.CapState,
         terms: controller.HostTerms, scale: Fraction,
         io: Fraction | None, *, limit_share: float | None = None,
         most_counted: Fraction | None = None) -> Wanted | str:
    """What is to be reserved; or why nothing is.

    :param scale: of the host, see HostBandwidth
    :param io: that its threads of I/O are to have, see :class:`io_share.Split`
    :param limit_share: what its vCPUs are left while it pays for its I/O;
        None: as its cap has it
    :param most_counted: of each vCPU, as counted_share; None: all of its units
    """
    if cap.desired is None or cap.in_force is None or terms.profile is None:
        return 'its cap is not known'
    flavor, tune = cap.desired.inputs.flavor, cap.desired.entitled
    if flavor.units is None:
        return 'it has no units'
    vcpus = max(flavor.vcpus, len(cap.in_force.vcpus))
    # One that may use more has no cap.
    entitled = units.share(flavor.units, vcpus,
                           server.coefficient(terms.profile))
    if tune.cap is not None:
        entitled = min(entitled, tune.cap.share)
    reclaims = may_use_more(server)
    if reclaims:
        # NOTE: of a thread that may use more the kernel counts all.
        scale = Fraction(1)
    if most_counted is not None:
        entitled = min(entitled, most_counted / scale)
    if entitled > guarantee.MOST_SHARE:
        return (f'a vCPU needs {float(entitled):.0%} of a pCPU, more than '
                'can be guaranteed')
    reservation = functools.partial(
        guarantee.vcpu_reservation, quantum_class=server.quantum_class,
        tick_us=terms.profile.tick_us, scale=scale)
    limited = entitled * guarantee.fraction(
        cap.desired.limit_share if limit_share is None else limit_share)
    split = io_share.Split.make(entitled, limited, vcpus, io)
    return Wanted(
        reservation(limited, kept=split.kept),
        guarantee.io_reservation(split.io),
        frozenset(cap.in_force.vcpus), reclaims, split, entitled * scale,
        reservation(entitled).share, guarantee.io_share(entitled, vcpus))


def may_use_more(server: servers.Server) -> bool:
    """Whether a server may use more than what is reserved for it."""
    return server.policy is not None and server.policy.cap == 'floor'
