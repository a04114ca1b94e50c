# SPDX-License-Identifier: Apache-2.0
"""Trials of the enforcer's servers: which are without their pools, and why.

What is found of each is :mod:`nova_vqos.quantum.progress`'s; here is where
servers, plans and the log meet it.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
import logging

from nova_vqos.agent.quantum import enforced_server
from nova_vqos.agent.quantum import watcher
from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import progress
from nova_vqos.quantum.placement import host

LOG = logging.getLogger(__name__)

# Of a pCPU: the progress of a server that wants less shows nothing.
_LEAST_WANTED = 0.01


class PoolTrials:
    """Tries servers of class auto without their pools; logs what came of it.
    """

    def __init__(self) -> None:
        self._judge = progress.Judge()

    @property
    def undone(self) -> int:
        """How many pools were found to make a server slower."""
        return self._judge.undone

    def retain(self, targets: Sequence[enforced_server.Target]) -> None:
        """Forget all other servers, and those that are not of class auto."""
        self._judge.retain({target.uuid for target in targets
                            if target.quantum_class == classes.AUTO})

    def look(self, targets: Sequence[enforced_server.Target],
             found: Mapping[str, watcher.Progress], now_s: float) -> None:
        """Judge pools by the progress of servers there.

        :param found: since the last look, by UUID
        """
        shares = {}
        for target in targets:
            one = found.get(target.uuid)
            if one is not None and one.wanted >= _LEAST_WANTED:
                # No pool gives it more than its cap.
                most = (one.wanted if target.cap is None else min(
                    one.wanted, one.vcpus * float(target.cap.share)))
                shares[target.uuid] = min(1.0, one.ran / most)
        changed = set(self._judge.look(shares, now_s))
        for target in targets:
            if target.uuid not in changed:
                continue
            phase = self._judge.phase(target.uuid)
            if phase is progress.Phase.TRIAL:
                LOG.info('Server %s (%s) is tried without its pool',
                         target.uuid, target.name)
            elif phase is progress.Phase.OUT:
                LOG.info('Server %s (%s) stays out of its pool for %g h: %s',
                         target.uuid, target.name,
                         self._judge.hold_s(target.uuid) / 3600,
                         self.why_out(target.uuid))

    def place(self, target: enforced_server.Target, threads: Collection[int],
              kinds: Collection[model.Kind], plan: host.HostPlan,
              is_at: bool) -> None:
        """Note where a server is, if that can be judged.

        :param threads: of its vCPUs
        :param kinds: of its vCPUs
        :param is_at: whether it is where the plan wants it
        """
        if target.quantum_class != classes.AUTO:
            return
        if model.Kind.SPIN in kinds:
            # It runs while it spins in vain.
            self._judge.suspend(target.uuid)
            return
        wanted = plan.placements.get(target.uuid)
        planned = plan.suspended.get(target.uuid, wanted)
        self._judge.place(target.uuid, threads,
                          None if planned is None else _pool(planned),
                          is_there=is_at)

    def floats(self, uuid: str) -> bool:
        """Whether a server is to be without its pool."""
        return self._judge.phase(uuid).floats

    def is_out(self, uuid: str) -> bool:
        """Whether a server is out of pools, since it gets on better so."""
        return self._judge.phase(uuid) is progress.Phase.OUT

    def why_out(self, uuid: str) -> str:
        """Why a server is out of pools; '': it is not."""
        verdict = self._judge.verdict(uuid)
        if verdict is None or not self.is_out(uuid):
            return ''
        return (f'its vCPUs ran for {verdict.pool:.0%} of the time that they '
                f'wanted to in its pool, and for {verdict.without:.0%} '
                'without')


def _pool(placement: host.Placement) -> Hashable:
    """What is compared with none; None: it is as without pools."""
    if not placement.pcpus and not any(placement.slices_us.values()):
        return None
    return (frozenset(placement.slices_us.items()),
            frozenset((placement.pcpus or {}).items()))
