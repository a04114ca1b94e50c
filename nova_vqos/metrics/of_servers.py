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

"""What is told of servers, from what list_servers answers."""

from collections.abc import Collection, Iterable, Iterator, Mapping
import dataclasses
import statistics
import typing as ty

from nova_vqos import units
from nova_vqos.metrics import families
from nova_vqos.quantum import classes

Report = Mapping[str, ty.Any]

_US_PER_S = 1e6
_SLICES = {
    families.SLICE: 'slice_us',
    families.OBTAINABLE: 'obtainable_us',
    families.RUN_LENGTH: 'mean_run_us',
}


@dataclasses.dataclass(slots=True)
class _Delivered:
    vcpu_s: float
    cu_s: float


class Deliveries:
    """Normalises the CPU time of servers.

    By steps, from the first look on: a product of all CPU time and the
    coefficient of today would jump, or fall, with each new profile.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Delivered] = {}

    def keep(self, uuids: Collection[str]) -> None:
        """Forget all servers but these."""
        for uuid in self._known.keys() - set(uuids):
            del self._known[uuid]

    def cu_s(self, uuid: str, vcpu_s: float, coefficient: float) -> float:
        """CU seconds that a server has got since it was first asked for.

        :param vcpu_s: its CPU time; it begins anew with each run of its
            emulator
        :param coefficient: that counts since the last call
        """
        known = self._known.setdefault(uuid, _Delivered(vcpu_s, 0.0))
        grown_s = (vcpu_s if vcpu_s < known.vcpu_s
                   else vcpu_s - known.vcpu_s)
        known.vcpu_s = vcpu_s
        known.cu_s += grown_s * coefficient * units.CU_PER_REFERENCE_PCPU
        return known.cu_s


def samples(servers: Iterable[Report], deliveries: Deliveries,
            offered: Collection[str]) -> Iterator[families.Sample]:
    """All that is told of servers.

    :param servers: see
        :meth:`nova_vqos.agent.manager.AgentManager.list_servers`
    :param deliveries: what is remembered between two calls
    :param offered: quantum classes that work on this host
    """
    servers = list(servers)
    deliveries.keep([server['server_uuid'] for server in servers])
    for server in servers:
        yield from _server(server, deliveries, offered)


def _server(server: Report, deliveries: Deliveries,
            offered: Collection[str]) -> Iterator[families.Sample]:
    labels = (server['server_uuid'], server['project_id'] or '')

    def known(family: families.Family,
              value: float | None) -> Iterator[families.Sample]:
        if value is not None:
            yield families.Sample(family, labels, float(value))

    policy = server['policy'] or {}
    yield families.Sample(families.SERVER_INFO, (
        *labels, server['name'] or '', server['flavor'] or '',
        policy.get('cap', ''), server['quantum_class'] or '',
        server['dd_billing'] or ''), 1.0)
    yield from known(families.ENTITLED, server['entitled_cu'])
    yield from known(families.VCPUS, policy.get('vcpus'))
    coefficient, vcpu_s = server['coefficient'], server['vcpu_s']
    yield from known(families.SERVER_COEFFICIENT, coefficient)
    yield from known(families.VCPU_SECONDS, vcpu_s)
    if coefficient is not None and vcpu_s is not None:
        yield from known(families.VCPU_CU_SECONDS, deliveries.cu_s(
            labels[0], vcpu_s, coefficient))
    yield from known(families.THROTTLED_SECONDS, server['throttled_s'])
    yield from known(families.CAP_RIGHT, server['right'])
    recap = server['last_recap'] or {}
    wrong_ms = recap.get('wrong_ms')
    yield from known(families.WRONG_SECONDS,
                     None if wrong_ms is None else wrong_ms / 1000)
    quantum = server['quantum']
    if quantum is not None:
        vcpus = quantum['vcpus'].values()
        yield from known(families.CLASS_RIGHT, (
            server['quantum_class'] in offered and not quantum['problem']
            # It may share its pCPUs with servers that would cut them short.
            and not (server['quantum_class'] in classes.DEFAULT_SLICES_US
                     and any(vcpu['slice_us'] is None for vcpu in vcpus))))
        for family, name in _SLICES.items():
            yield from known(family, _mean_s(vcpu[name] for vcpu in vcpus))
        # Of some of its vCPUs it would fall, and be taken for begun anew.
        waited_s = [vcpu['waited_s'] for vcpu in vcpus]
        if waited_s and None not in waited_s:
            yield from known(families.WAITED_SECONDS, sum(waited_s))
    yield from _bill(labels, server['bill'])


def _bill(labels: tuple[str, str],
          bill: Report | None) -> Iterator[families.Sample]:
    if bill is None:
        return
    for component, used_cu_s in bill['used_here_cu_s'].items():
        yield families.Sample(
            families.BILLED, (*labels, component), used_cu_s)
    for family, name in ((families.DEBT, 'debt_cu_s'),
                         (families.WRITTEN_OFF, 'written_off_here_cu_s'),
                         (families.OVERDRAWN, 'overdrawn'),
                         (families.LIMIT, 'limit_cu')):
        if bill[name] is not None:
            yield families.Sample(family, labels, float(bill[name]))


def _mean_s(lengths_us: Iterable[float | None]) -> float | None:
    known_us = [length for length in lengths_us if length is not None]
    return statistics.fmean(known_us) / _US_PER_S if known_us else None
