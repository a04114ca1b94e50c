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

"""What a trace is taken for. Pure."""

from collections.abc import Iterable
import dataclasses

from nova_vqos.quantum import model
from nova_vqos.quantum import recognition
from nova_vqos.quantum import trace


@dataclasses.dataclass(slots=True)
class Spell:
    """What a vCPU was taken for, from one change to the next.

    :ivar from_s: since the trace began, at the look that told it
    :ivar to_s: at the last look before the next change
    :ivar kind: None: it could not be told
    :ivar cursors: its means at the first of these looks
    """

    server: str
    vcpu: int
    from_s: float
    to_s: float
    kind: model.Kind | None
    pollutes: bool
    cursors: recognition.Cursors


def spells(records: Iterable[trace.Record], limits: recognition.Limits
           ) -> list[Spell]:
    """Look at the vCPUs of a trace as the agent did.

    :returns: all spells, by server, vCPU and time
    :raises nova_vqos.quantum.trace.TraceInvalid: when the trace is damaged
    """
    recognizer = recognition.Recognizer(limits)
    began_s: float | None = None
    present: dict[trace.Key, Spell] = {}
    found: list[Spell] = []
    for look in trace.looks(records):
        began_s = look[0].at_s if began_s is None else began_s
        now_s = look[0].at_s - began_s
        recognizer.keep({(record.server, record.vcpu) for record in look})
        for record in look:
            key = record.server, record.vcpu
            recognizer.take(key, record.sample, record.thread)
            kind, pollutes = recognizer.kind(key), recognizer.pollutes(key)
            spell = present.get(key)
            if spell is None or (spell.kind, spell.pollutes) != (kind,
                                                                 pollutes):
                spell = present[key] = Spell(
                    *key, now_s, now_s, kind, pollutes, recognizer.means(key))
                found.append(spell)
            spell.to_s = now_s
    return sorted(found, key=lambda spell: (spell.server, spell.vcpu,
                                            spell.from_s))
