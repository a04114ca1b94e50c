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


"""Whether a profile still holds on the host that was measured."""

import typing as ty

from nova_vqos.profile import model
from nova_vqos.profile import pcpus


def staleness(profile: model.Profile, fingerprint: ty.Mapping[str, str], *,
              max_interval: float = 0.05) -> list[str]:
    """Why a profile does not hold on a host; nothing where it does.

    :param fingerprint: of the host as it is now
    :param max_interval: widest confidence interval of a coefficient,
        relative to it
    """
    reasons = [
        f'{key} was {was!r} and is {fingerprint.get(key, "unknown")!r}'
        for key, was in sorted(profile.fingerprint.items())
        if fingerprint.get(key, 'unknown') != was]
    reasons += [
        f'the interval of pCPUs {pcpus.format_pcpus(c.pcpus)} is '
        f'{c.busy.interval_width:.1%} wide, more than {max_interval:.1%}'
        for c in profile.cpu_classes
        if c.busy.interval_width > max_interval]
    return reasons
