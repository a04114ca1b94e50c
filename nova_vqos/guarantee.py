# SPDX-License-Identifier: Apache-2.0
"""What is reserved for a server whose speed is guaranteed. Pure.

A cap says how much CPU time a vCPU gets at most. A reservation of the same
share says that it gets it, beside any neighbour. The threads that serve the
server's I/O need one too: all that has no reservation runs only while those
that have one leave the pCPUs alone.
"""

from fractions import Fraction
import math

from nova_vqos import units

# A vCPU waits for up to twice the rest of its period.
_PERIOD_US = 50_000
_IO_CLASS_PERIOD_US = 20_000

#: Of a pCPU's time, for one vCPU. All pCPUs have to leave some to the threads
#: of the host.
MOST_SHARE = Fraction(9, 10)

# Of each thread that serves I/O: a twelfth of what the server's vCPUs have
# together, within bounds.
_IO_PART = Fraction(1, 12)
_LEAST_IO_SHARE = Fraction(2, 100)
_MOST_IO_SHARE = Fraction(8, 100)
# NOTE: less than a tick of the scheduler, at which most kernels see that it is
# used up: what runs on is paid back later. But these threads run for some
# tenths of a millisecond at a time, and a short period is an early deadline:
# they wait for vCPUs less.
_IO_RUNTIME_US = 1000
# Each of them has up to so much where they use it and vCPUs leave it.
_MOST_FOLLOWED_IO_SHARE = Fraction(25, 100)
# I/O comes in bursts, and one that a reservation cuts short waits for the next
# period. So each gets three times what it uses, when more or less than these
# parts of what it has is used.
_RAISED_ABOVE, _LOWERED_BELOW = 0.4, 0.2
_IO_HEADROOM = 3
# vCPUs leave what is above so much of their use, at most the last part of what
# they are to have: all of it is back only at the next look, once they use all
# but so little of what they kept.
_VCPU_HEADROOM = Fraction(5, 4)
_MOST_LEFT = Fraction(1, 4)
_BUSY_ABOVE = 0.95
#: The emulator's main thread, and one I/O thread, which Nova gives each guest.
IO_THREADS = 2

#: What is not sold of the bandwidth that the kernel was seen to reserve: it
#: comes back only some time after a server went.
UNSOLD_PART = Fraction(3, 100)


def vcpu_reservation(share: Fraction, quantum_class: str, *, tick_us: int,
                     scale: Fraction = Fraction(1),
                     kept: Fraction = Fraction(1)) -> units.CpuCap:
    """What is reserved for each vCPU of a server.

    No runtime of the whole share is below two ticks of the scheduler: a thread
    that overran one would be stopped for many periods. A part of it has a
    shorter runtime, but no longer period, which would be a later deadline.

    Some kernels count a runtime in seconds at full clock: at 0.8 of it a
    second counts as 0.8. A server's share is one of the time at the clock at
    which the host was calibrated, with all pCPUs busy. So with that scale, its
    runtime lasts for the share at that clock. At a higher clock it ends
    earlier, after the same work.

    :param share: of a pCPU's time
    :param quantum_class: of the server
    :param tick_us: length of the scheduler's tick
    :param scale: what of a second the kernel counts at that clock, up to 1
    :param kept: the part of its share that it has while threads of I/O have
        the rest; three quarters at least
    """
    whole = units.cap_of_share(
        share * scale, tick_us=tick_us, period_us=(
            _IO_CLASS_PERIOD_US if quantum_class == 'io' else _PERIOD_US))
    return whole._replace(quota_us=round(whole.quota_us * kept))


def counted_part(calibrated_part: Fraction, mhz: float,
                 calibrated_mhz: float) -> float:
    """What the kernel counts of a second in which a thread runs at a clock.

    At full clock it counts all of it, and never more.

    :param calibrated_part: the same at the clock of the calibration
    """
    return min(1.0, float(calibrated_part) * units.clock_scale(
        mhz, calibrated_mhz))


def io_share(share: Fraction, vcpus: int) -> Fraction:
    """Of a pCPU's time, for each thread that serves a server's I/O, at least.

    :param share: of each vCPU
    :param vcpus: how many it has
    """
    return min(max(share * vcpus * _IO_PART, _LEAST_IO_SHARE), _MOST_IO_SHARE)


def io_reservation(share: Fraction) -> units.CpuCap:
    """What is reserved for a thread that serves I/O, for its share."""
    return units.CpuCap(_IO_RUNTIME_US, round(_IO_RUNTIME_US / share))


def unused_pcpus(share: Fraction, vcpus: int, has_share: Fraction,
                 used_share: float) -> Fraction:
    """What threads of I/O may have of the time of a server's vCPUs.

    :param share: what each vCPU is to have at least when it needs it
    :param has_share: what is reserved for each of them now
    :param used_share: what the busiest used lately
    """
    if used_share > _BUSY_ABOVE * has_share:
        return Fraction(0)
    left = share - fraction(used_share) * _VCPU_HEADROOM
    return min(max(Fraction(0), left), share * _MOST_LEFT) * vcpus


def is_io_short(has_share: Fraction, used_share: float) -> bool:
    """Whether threads that serve I/O are to have more."""
    return used_share > _RAISED_ABOVE * has_share


def followed_io_share(least_share: Fraction, has_share: Fraction,
                      used_share: float, unused: Fraction) -> Fraction:
    """What a thread that serves I/O is to have, after what it used.

    What is above the least is taken from the server's own vCPUs, so that the
    server as a whole has what it had.

    :param least_share: see :func:`io_share`
    :param has_share: what it has now
    :param used_share: what the busiest such thread used lately
    :param unused: see :func:`unused_pcpus`
    """
    wanted = has_share
    if (is_io_short(has_share, used_share)
            or used_share < _LOWERED_BELOW * has_share):
        wanted = fraction(used_share * _IO_HEADROOM)
    return max(least_share, min(wanted, _MOST_FOLLOWED_IO_SHARE,
                                least_share + unused / IO_THREADS))


def fraction(share: float) -> Fraction:
    """The next 1/1000: fractions grow with each sum otherwise."""
    return Fraction(round(share * 1000), 1000)


def sellable_pcpus(reservable_pcpus: Fraction,
                   most_pcpus: Fraction | None = None) -> Fraction:
    """What is sold of the pCPUs' time, where the kernel reserves so much.

    Both are the same where the kernel counts seconds at full clock. At 0.8 of
    it, the pCPUs have 0.8 of the seconds that it admits. But each server also
    takes 0.8 of its share of them, see :func:`vcpu_reservation`.

    :param most_pcpus: that the operator lets be reserved; None: no bound
    """
    sellable_pcpus = reservable_pcpus * (1 - UNSOLD_PART)
    return (sellable_pcpus if most_pcpus is None
            else min(sellable_pcpus, most_pcpus))


def taken_pcpus(vcpus_pcpus: Fraction, others_pcpus: Fraction,
                scale: Fraction) -> Fraction:
    """The time that reservations take at the calibrated clock, in pCPUs.

    NOTE: the kernel counts the time of threads that may use more by the clock
    on the wall (grub_reclaim() in kernel/sched/deadline.c).

    :param vcpus_pcpus: of vCPUs that may not, as the kernel counts it
    :param others_pcpus: of threads that may use what others leave unused
    :param scale: as of :func:`vcpu_reservation`
    """
    return vcpus_pcpus / scale + others_pcpus


def cost_pcpus(share: Fraction, vcpus: int) -> Fraction:
    """What a server takes of the time that a host can reserve, in pCPUs.

    :param share: of a pCPU's time, of each vCPU
    :param vcpus: how many it has
    """
    return share * vcpus + IO_THREADS * io_share(share, vcpus)


def unsold_cu(capacity_cu: int, total_pcpus: float,
              pcpu_cu: Fraction) -> int:
    """CU of a host that are not sold, since they cannot be reserved.

    :param capacity_cu: of the host
    :param total_pcpus: whose time can be reserved for servers, with what is
        reserved already; 0: the host guarantees no speed, and sells all. Its
        shortest decimal form counts, so that 1.7 of 100 CU are 170 CU
    :param pcpu_cu: the speed of each of its pCPUs
    """
    if not total_pcpus:
        return 0
    return max(0, capacity_cu - math.floor(
        Fraction(repr(float(total_pcpus))) * pcpu_cu))


def refusal(share: Fraction, vcpus: int, pcpu_cu: Fraction,
            free_cu: int | None) -> str:
    """Why a host cannot guarantee the speed of one more server; '': it can.

    :param share: of a pCPU's time, that each of its vCPUs is to have
    :param pcpu_cu: the speed of its slowest pCPU
    :param free_cu: CU that it can still reserve; None: it reserves none
    """
    if free_cu is None:
        return 'it guarantees no speed'
    if share > MOST_SHARE:
        return (f'a vCPU needs {float(share):.0%} of a pCPU, of which at most '
                f'{float(MOST_SHARE):.0%} can be guaranteed')
    needed_cu = cost_pcpus(share, vcpus) * pcpu_cu
    if needed_cu > free_cu:
        return (f'it can guarantee {free_cu} CU more, and the server needs '
                f'{units.format_cu(needed_cu)} with its I/O')
    return ''
