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

"""A host whose servers are billed, for tests: all but the loop is real."""

import dataclasses

from nova_vqos.agent import biller as billers
from nova_vqos.agent import subject as subjects
from nova_vqos.billing import ledger as ledgers
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import test_meter

UUID = fakes.UUID
NOW_S = 1_700_000_000.0


class Told:
    """What others were told."""

    def __init__(self):
        self.claims = []
        self.statements = []
        self.events = []
        self.usages = []

    def claim(self, server_uuid):
        self.claims.append(server_uuid)

    def hand_over(self, host, statement):
        self.statements.append((host, statement))

    def overdrawn(self, payload):
        self.events.append(payload)

    def usage(self, payload):
        self.usages.append(payload)


class Host:
    """A host with a ledger, whose agent may end and start again."""

    def __init__(self, directory, name='here'):
        self.name = name
        self.directory = directory / name
        self.path = self.directory / 'ledger.sqlite'
        self.now_s = 1000.0
        self.hypervisor = fakes.FakeHypervisor()
        self.costs = test_meter.COSTS
        self.subjects = {}
        self.start()

    def hide_ledger(self):
        """Let the ledger be out of reach, from the agent's next start on."""
        self.biller.close()
        self.path.rename(self.directory / 'hidden')
        self.path.mkdir()
        self.start()

    def find_ledger(self):
        self.path.rmdir()
        (self.directory / 'hidden').rename(self.path)

    def start(self, **options):
        """An agent starts, with what the disk knows."""
        self.told = Told()
        self.ledger = ledgers.Ledger(str(self.path))
        self.biller = billers.Biller(
            self.hypervisor, self.ledger, self.told,
            billers.Options(**options), host=self.name,
            clock=lambda: self.now_s, utc=lambda: NOW_S + self.now_s)
        self.subjects = {
            uuid: dataclasses.replace(subject, origin='found')
            for uuid, subject in self.subjects.items()}

    def run(self, uuid=UUID, *, run='one', origin='booted', billing='account',
            units=60, limit_share=None, began_s=None, **counters):
        """Let a server run here."""
        self.hypervisor.runs[uuid] = 1
        self.hypervisor.used[uuid] = test_meter.reading(
            self.now_s, run=run, **counters)
        self.subjects[uuid] = subjects.Subject(
            uuid=uuid, name='instance', project_id='p', billing=billing,
            origin=origin, began_s=began_s, coefficient=1.0,
            entitlement_cu=units, limit_share=limit_share,
            devices=test_meter.DEVICES)

    def leave(self, uuid=UUID):
        del self.hypervisor.runs[uuid], self.subjects[uuid]

    def use(self, uuid=UUID, length_s=2.0, **counters):
        """Let a server use something, and be billed for it."""
        self.now_s += length_s
        reading = self.hypervisor.used[uuid]
        self.hypervisor.used[uuid] = dataclasses.replace(
            reading, read_at_s=self.now_s, **{
                name: getattr(reading, name) + value
                for name, value in counters.items()})
        return self.round().get(uuid)

    def use_time(self):
        """Let a round pass."""
        self.now_s += 2
        return self.round()

    def round(self):
        return self.biller.round(list(self.subjects.values()), self.costs,
                                 set(self.hypervisor.runs))

    def take_claim(self, host, uuid=UUID, age_s=0):
        """The agent of another host says that a server runs there now."""
        self.biller.hand_over.take_claim(uuid, host,
                                         NOW_S + self.now_s - age_s)

    def account(self, uuid=UUID):
        """What the disk knows."""
        ledger = ledgers.Ledger(str(self.path))
        try:
            return ledger.get(uuid)
        finally:
            ledger.close()

    def used_cu_s(self, name='emulator', uuid=UUID):
        return self.account(uuid).total_cu_us[name] / 1e6
