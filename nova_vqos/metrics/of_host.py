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

"""What is told of agent and host, from what get_host answers. Pure."""

from collections.abc import Iterator, Mapping
import datetime
import typing as ty

from nova_vqos import verification
from nova_vqos.metrics import families
from nova_vqos.quantum import occupancy

Report = Mapping[str, ty.Any]

_COUNTS = {
    families.TICKS: 'ticks',
    families.CAP_WRITES: 'writes',
    families.PINS: 'pins',
    families.TAMPERINGS: 'restored',
    families.POLICY_ERRORS: 'policy_errors',
    families.ERRORS: 'errors',
    families.BILLING_ROUNDS: 'bills',
}
_UNITS = {
    families.CAPACITY: 'capacity_cu',
    families.RESERVED: 'reserved_cu',
    families.ALLOCATION_RATIO: 'allocation_ratio',
    families.USED: 'used_cu',
}
_LOADS = {
    'servers': 'servers_cu',
    'modelled_io': 'modelled_cu',
    'own': 'own_cu',
    'unattributed': 'unattributed_cu',
}


def samples(host: Report) -> Iterator[families.Sample]:
    """All that is told of an agent whose loop answered, and of its host.

    :param host: see :meth:`nova_vqos.agent.manager.AgentManager.get_host`
    """
    yield _one(families.HYPERVISOR_CONNECTED, host['connected'])
    yield _one(families.ALARMS, len(host['alarms']))
    yield _one(families.LEDGER_STORED, 'account' in host['dd_billing'])
    yield _one(families.PUSHED, host['pushed_generation'] / 1e6)
    yield _one(families.LAST_TICK, host['last_tick_ms'] / 1000)
    for family, name in _COUNTS.items():
        yield _one(family, host[name])
    yield _one(families.DOMAINS, host['domains'])
    yield _one(families.SERVERS, len(host['servers']))
    yield _one(families.SERVERS_WRONG, len(host['wrong']))
    yield from _units(host['units'])
    yield from _profile(host)
    yield from _load(host['capacity'])
    for name in occupancy.NAMES:
        yield _one(families.CLASS_OFFERED, name in host['quantum_classes'],
                   name)
    yield from _quantum(host['quantum'])


def drift_samples(found: verification.Verification | None
                  ) -> Iterator[families.Sample]:
    """What the last verification of the profile in use found.

    :param found: None: there was none
    """
    if found is None:
        return
    yield _one(families.PROFILE_HOLDS, found.verdict != verification.STALE)
    yield from _when(families.VERIFIED, found.verified_at)
    for pcpus, drift in found.drifts.items():
        yield _one(families.DRIFT, drift, pcpus)


def _units(units: Report | None) -> Iterator[families.Sample]:
    if units is None:
        return
    for family, name in _UNITS.items():
        yield _one(family, units[name])
    for pcpu in 'slowest', 'fastest':
        yield _one(families.COEFFICIENT, units[f'{pcpu}_cu'] / 100, pcpu)


def _profile(host: Report) -> Iterator[families.Sample]:
    profile = host['profile']
    yield _one(families.PROFILE_VALID,
               profile is not None and not host['problem'])
    if profile is None:
        return
    yield _one(families.PROFILE_INFO, 1, profile['id'], profile['reference'])
    yield from _when(families.PROFILE_MEASURED, profile['measured_at'])


def _load(capacity: Report | None) -> Iterator[families.Sample]:
    if capacity is None:
        return
    for part, name in _LOADS.items():
        yield _one(families.LOAD, capacity[name], part)
    yield _one(families.UNPAID, capacity['unpaid_cu'])
    yield _one(families.SUGGESTED_RESERVED, capacity['suggested_reserved_cu'])


def _quantum(quantum: Report | None) -> Iterator[families.Sample]:
    if quantum is None:
        return
    yield _one(families.SLICES_WRITTEN, quantum['slices_written'])
    yield _one(families.SERVERS_PLACED, quantum['servers_placed'])
    for name, (pcpus, vcpus) in quantum['pools'].items():
        yield _one(families.POOL_PCPUS, pcpus, name)
        yield _one(families.POOL_VCPUS, vcpus, name)


def _one(family: families.Family, value: float,
         *labels: str) -> families.Sample:
    return families.Sample(family, labels, float(value))


def _when(family: families.Family, text: str
          ) -> Iterator[families.Sample]:
    """A time in ISO 8601, UTC where it does not say; nothing: it is none."""
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        return
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    yield _one(family, when.timestamp())
