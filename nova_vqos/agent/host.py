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


"""The host, as the agent's loop knows it."""

from collections.abc import Mapping
import dataclasses
import datetime
import typing as ty

from nova_vqos import pushed
from nova_vqos import tuning
from nova_vqos.agent import connection as connections
from nova_vqos.agent import counts as counting
from nova_vqos.agent import decision
from nova_vqos.agent import profile_watch
from nova_vqos.agent import pushed_store
from nova_vqos.agent import quanta as slicing
from nova_vqos.agent import rounds as billing
from nova_vqos.agent import sampling
from nova_vqos.agent import server as servers
from nova_vqos.agent import snapshot
from nova_vqos.agent import state
from nova_vqos.hypervisor import base
from nova_vqos.quantum import occupancy as occupancies


class Host:
    """What the host has to offer, and how it is; called by the loop."""

    def __init__(self, hypervisor: base.Hypervisor,
                 profiles_in_use: profile_watch.ProfileWatch,
                 connection: connections.Connection, rounds: billing.Rounds,
                 quanta: slicing.Quanta, samples: sampling.Sampling,
                 known: Mapping[str, servers.Server],
                 store: pushed_store.PushedStore | None = None, *,
                 periods: tuning.Periods, reserved_cu: int,
                 allocation_ratio: float) -> None:
        """
        :param known: the loop's servers by UUID
        :param store: has what was pushed of flavors; None: nothing was
        :param periods: see :class:`decision.HostTerms`, as the next two
        """
        self._hypervisor = hypervisor
        self._profiles = profiles_in_use
        self._connection = connection
        self._rounds = rounds
        self._quanta = quanta
        self._sampling = samples
        self._known = known
        self._store = store
        self._periods = periods
        self._reserved_cu = reserved_cu
        self._allocation_ratio = allocation_ratio
        self._started_at = state.utc()

    def terms(self) -> decision.HostTerms:
        """What a server's tuning depends on besides the server, now."""
        return decision.HostTerms(
            profile=self._profiles.profile,
            cgroup_version=self._hypervisor.cgroup_version,
            periods=self._periods, reserved_cu=self._reserved_cu,
            allocation_ratio=self._allocation_ratio,
            charges=self._rounds.charges)

    @property
    def profile_id(self) -> str | None:
        """Of the profile in use; None: there is none."""
        profile = self._profiles.profile
        return None if profile is None else profile.id

    @property
    def connected(self) -> bool:
        """Whether the hypervisor can be reached, as far as known."""
        return self._connection.up

    @property
    def dd_billing(self) -> tuple[str, ...]:
        """What of ``vqos:dd_billing`` works here now."""
        return self._rounds.offers

    @property
    def quantum_classes(self) -> tuple[str, ...]:
        """What of ``vqos:quantum_class`` works here now."""
        return self._quanta.classes

    @property
    def occupancy(self) -> occupancies.Occupancy:
        """What the pools of this host hold."""
        return self._quanta.occupancy

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should look at, one text each."""
        unkept = '' if self._store is None else self._store.problem
        return (*self._profiles.alarms, *self._rounds.alarms,
                *self._quanta.alarms, *self._sampling.alarms,
                *filter(None, [unkept]))

    def report(self, counts: counting.Counts,
               last_tick_ms: float) -> dict[str, ty.Any]:
        """All that is of use to others, in primitives."""
        looked_after = [server for server in self._known.values()
                        if server.policy is not None]
        profile = self._profiles.profile
        return {
            'at': state.utc(),
            'started_at': self._started_at,
            'connected': self.connected,
            'cgroup_version': self._hypervisor.cgroup_version,
            'profile_id': self.profile_id,
            'profile': snapshot.of_profile(
                profile, datetime.datetime.now(datetime.UTC)),
            'problem': self._profiles.problem,
            'units': snapshot.of_units(profile, self.terms(), looked_after),
            'proof': snapshot.of_proof(self._quanta.proof),
            'alarms': list(self.alarms),
            'domains': len(self._known),
            'servers': sorted(server.uuid for server in looked_after),
            'wrong': sorted(server.uuid for server in looked_after
                            if not server.right),
            'last_tick_ms': round(last_tick_ms, 3),
            'bills': self._rounds.done,
            'dd_billing': list(self.dd_billing),
            'capacity': self._rounds.capacity,
            'quantum_classes': list(self.quantum_classes),
            'quantum': self._quanta.report,
            'pushed_generation': (
                0 if self._store is None
                else pushed.generation_of(self._store.overrides)),
            **dataclasses.asdict(counts),
            'errors': (counts.errors + self._rounds.errors
                       + self._quanta.errors + self._sampling.errors),
        }
