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
"""What becomes of a server's cap where it is live-migrated to. Pure."""

from collections.abc import Mapping
from decimal import Decimal
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import tuning
from nova_vqos import units
from nova_vqos.manage import checks

# A cap is that near to what was promised: see nova_vqos.units.cap().
_TOLERANCE = 0.001


class Landing(ty.NamedTuple):
    """A server on a host.

    :ivar cap: of each of its vCPUs; None: none, or not known
    :ivar cap_cu: what that is worth there
    :ivar as_fast: whether that is what was promised; None: nothing was, or
        it is not known
    :ivar notes: what else is to be known
    """

    cap: units.CpuCap | None = None
    cap_cu: float | None = None
    as_fast: bool | None = None
    notes: tuple[str, ...] = ()


def land(policy: policies.ServerPolicy | None, verdict: checks.Verdict,
         terms: Mapping[str, int], *, has_hook: bool,
         now_cu: float | None) -> Landing:
    """What a server has on a host.

    :param policy: None: stock Nova's business
    :param verdict: of the host
    :param terms: see :func:`nova_vqos.compute_state.terms_of`
    :param has_hook: whether libvirt's hook is installed there
    :param now_cu: speed of the slowest pCPU where it is now; None: not known
    """
    if policy is None or policy.units is None:
        return Landing(notes=_without_promise(verdict.speed_cu, now_cu))
    if verdict.fits == checks.NO:
        return Landing()
    notes = [] if has_hook else [
        "libvirt's hook is not installed there: the server arrives with the "
        'cap that it has now, until the agent has seen it']
    if policy.cap == 'floor':
        return Landing(notes=(*notes, 'it is not capped: a floor'),
                       as_fast=True if verdict.speed_cu else None)
    cap = _cap(policy, verdict.speed_cu, terms)
    if cap is None or verdict.speed_cu is None:
        return Landing(notes=tuple(notes))
    cap_cu = float(cap.share) * verdict.speed_cu
    promised_cu = float(units.cu_per_vcpu(policy.units, policy.vcpus))
    return Landing(
        cap=cap, cap_cu=round(cap_cu, 2),
        as_fast=abs(cap_cu / promised_cu - 1) <= _TOLERANCE,
        notes=tuple(notes))


def _cap(policy: policies.ServerPolicy, speed_cu: float | None,
         terms: Mapping[str, int]) -> units.CpuCap | None:
    if speed_cu is None:
        return None
    # NOTE: exact, so that a pCPU of 33.4 CU takes a vCPU of 33.4 CU.
    coefficient = float(Decimal(repr(speed_cu)) / units.CU_PER_REFERENCE_PCPU)
    try:
        fields = {name: terms[name] for name in tuning.Periods._fields}
        return tuning.cap_of(policy, coefficient, tick_us=terms['tick_us'],
                             periods=tuning.Periods(**fields))
    except (KeyError, ValueError):
        return None


def _without_promise(there_cu: float | None, now_cu: float | None
                     ) -> tuple[str, ...]:
    note = 'its flavor promises no speed'
    if there_cu and now_cu:
        note += f': a pCPU there is {there_cu / now_cu:.2f} times as fast'
    return (note,)
