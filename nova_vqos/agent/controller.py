# SPDX-License-Identifier: Apache-2.0
"""What the agent's loop has in common with its controllers."""

import abc
from collections.abc import Mapping
import dataclasses

from nova_vqos import cputune
from nova_vqos.profile import model


@dataclasses.dataclass(frozen=True, slots=True)
class HostTerms:
    """What is wanted for a server depends on, besides the server.

    :ivar profile: None: there is none
    :ivar periods: the CFS periods wanted
    :ivar reserved_cu: for the host itself, see [vqos] reserved_cu
    :ivar stock_cu: that servers without units can use
    :ivar work_cu: that other servers take beyond their units
    :ivar allocation_ratio: see :func:`nova_vqos.core_types.with_servers`
    :ivar charges: whether servers that pay for their I/O are limited; False:
        billing is off
    :ivar limits_vhost: whether the kernel holds workers of vhost to a limit
    """

    profile: model.Profile | None
    cgroup_version: int
    periods: cputune.Periods
    reserved_cu: int = 0
    stock_cu: int = 0
    work_cu: int = 0
    allocation_ratio: float = 1.0
    charges: bool = False
    limits_vhost: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """How a controller is.

    :ivar offers: the choices of its extra spec that work on this host now
    :ivar alarms: what an operator should look at, one text each
    :ivar counters: since the agent started, by the name that get_host gives
        them
    :ivar errors: unexpected ones since the agent started
    :ivar busy: whether any work of it is under way
    """

    offers: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    errors: int = 0
    busy: bool = False


class Controller(abc.ABC):
    """One thing that the agent does for the servers of its host.

    It has a state of its own for each server, which it alone writes. The loop
    calls all of it; what may block it gives to workers.

    :ivar due_at_s: when :meth:`tick` has to be called next, on the monotonic
        clock
    """

    due_at_s = float('-inf')

    @abc.abstractmethod
    def tick(self, now_s: float, terms: HostTerms) -> None:
        """Do what is due.

        :param now_s: on the monotonic clock
        """

    def expire(self) -> None:
        """Be due in the next tick: a server is new, or follows a push."""
        self.due_at_s = float('-inf')

    @abc.abstractmethod
    def status(self) -> Status:
        """How it is, from memory alone."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources when the agent ends. Never raises."""
