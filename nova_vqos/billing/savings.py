# SPDX-License-Identifier: Apache-2.0
"""What a server saves of its units, and spends in bursts. Pure.

In any time ``t`` it uses no more than ``units * t`` and what it may save, and
what it overspends until that is seen.
"""

import typing as ty

from nova_vqos import policy as policies
from nova_vqos.billing import account

# What it is bound by, whatever its flavor says: a ledger stores it exactly.
_MOST_CU_US = account.MOST_STATED_CU_US // 2


class Terms(ty.NamedTuple):
    """The flavor of a server that bursts.

    :ivar units: that it earns
    :ivar burst_cu: that it runs at while it bursts
    :ivar seconds: for which it can, with all that it may save
    """

    units: int
    burst_cu: int
    seconds: int

    @property
    def most_cu_us(self) -> int:
        """The most that it may save."""
        return min(_MOST_CU_US, (self.burst_cu - self.units) * account.cu_us(
            self.seconds))

    @property
    def least_cu_us(self) -> int:
        """What it can have overspent: a day of bursts. The rest is forgiven.

        As where an agent was killed, and nothing ended its burst.
        """
        return -self._replace(seconds=policies.MOST_BURST_SECONDS).most_cu_us

    def gained_cu_us(self, length_s: float, used_cu_us: int) -> int:
        """What it saves in an interval; below 0: it spends.

        :param length_s: 0: not known, so that it neither earns nor pays
        :param used_cu_us: by its vCPUs in the interval
        """
        # NOTE: a server that started while no agent ran has used something,
        # and it is not known in what time.
        return 0 if length_s <= 0 else account.cu_us(
            self.units * length_s) - used_cu_us


def terms(policy: policies.ServerPolicy | None) -> Terms | None:
    """The terms of a policy; None: its servers do not burst."""
    if (policy is None or policy.units is None or policy.burst_cu is None
            or policy.burst_seconds is None):
        return None
    return Terms(policy.units, policy.burst_cu, policy.burst_seconds)
