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

"""vCPUs, sockets and slices for the tests of clustering."""

import collections
from collections.abc import Mapping, Sequence
from fractions import Fraction

from hypothesis import strategies as st

from nova_vqos.quantum import model

SLICES_US = {'io': 1_000, 'spin': 1_000, 'cache': 90_000}
KINDS = tuple(model.Kind)


def of_kind(kind: model.Kind, count: int, pollutes: bool = False,
            per_server: int = 1, name: str = '') -> list[model.Vcpu]:
    """vCPUs of one kind, so many to a server."""
    name = name or f'{kind.value}{"+" if pollutes else "-"}'
    return [model.Vcpu(f'{name}{number // per_server}',
                       number % per_server, kind, pollutes)
            for number in range(count)]


def sockets(count: int, cores: int, siblings: int = 1) -> list[model.Socket]:
    """Equal sockets; pCPUs are numbered as they come."""
    return [model.Socket(number, tuple(
        tuple(range(first, first + siblings))
        for first in range(number * cores * siblings,
                           (number + 1) * cores * siblings, siblings)))
            for number in range(count)]


def counted(vcpus: Sequence[model.Vcpu]) -> dict[str, int]:
    """How many there are of each kind: IO+ of those that pollute."""
    return dict(collections.Counter(
        vcpu.kind.name + '+' * (vcpu.pollutes and vcpu.is_polluter)
        for vcpu in vcpus))


def where(plan: model.Plan) -> Mapping[model.Key, tuple[int, int | None]]:
    """The pool of each vCPU, by its key: its socket and slice."""
    return {vcpu.key: (pool.socket, pool.slice_us)
            for pool in plan.pools for vcpu in pool.vcpus}


def moved(before: model.Plan, after: model.Plan) -> int:
    """How many vCPUs of both plans are in another pool."""
    then, now = where(before), where(after)
    return sum(then[key] != now[key] for key in then.keys() & now.keys())


@st.composite
def vcpus(draw: st.DrawFn, most: int = 40, mixed: bool = True,
          shares: bool = False, kinds: Sequence[model.Kind] = KINDS,
          ) -> list[model.Vcpu]:
    """vCPUs of servers of up to 6.

    :param mixed: whether those of a server may be of several kinds
    :param shares: whether they were promised any part of a pCPU
    """
    made = []
    for server in range(draw(st.integers(1, most // 2))):
        of_server = draw(st.sampled_from(kinds)), draw(st.booleans())
        for number in range(draw(st.integers(1, 6))):
            kind, pollutes = of_server
            if mixed and draw(st.booleans()):
                kind = draw(st.sampled_from(kinds))
            share = Fraction(draw(st.integers(0, 12)), 12) if shares else 0
            made.append(model.Vcpu(f'server{server}', number, kind, pollutes,
                                   share))
    return made[:most]


@st.composite
def hosts(draw: st.DrawFn) -> list[model.Socket]:
    """Sockets of cores with one to four siblings online."""
    made, first = [], 0
    for number in range(draw(st.integers(1, 4))):
        cores = []
        for siblings in draw(st.lists(st.sampled_from((1, 2, 2, 4)),
                                      min_size=1, max_size=5)):
            cores.append(tuple(range(first, first + siblings)))
            first += siblings
        made.append(model.Socket(number, tuple(cores)))
    return made
