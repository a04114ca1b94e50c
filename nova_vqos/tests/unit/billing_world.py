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


"""A host whose servers may be billed."""

import dataclasses

from nova_vqos.agent import biller as billers
from nova_vqos.billing import ledger as ledgers
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_host
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import test_meter

KIND = base.EventKind
# What 60 CU are on two pCPUs of 100 CU.
WHOLE = base.Limit(30_000, 50_000)


class World(agent_world.World):
    """A host whose servers may be billed."""

    def __init__(self, directory, store=None, **options):
        """
        :param store: has what was pushed
        :param options: of the biller
        """
        self.path = directory / 'lib' / 'ledger.sqlite'
        self.told = billing_host.Told()

        def make_biller(host, clock):
            return billers.Biller(
                host, ledgers.Ledger(str(self.path)), self.told,
                billers.Options(**options), host='host', clock=clock)
        super().__init__(directory, make_biller=make_biller, store=store)

    def boot(self, uuid=fakes.UUID, *, dd_billing='charge', **others):
        specs = others.pop('specs', None) or fakes.make_specs(
            dd_billing=dd_billing)
        self.host.boot(uuid, specs=specs, **others)
        self.host.used[uuid] = test_meter.reading(self.now_s)

    def use(self, times=1, uuid=fakes.UUID, **used_ns):
        """Let a second go by in which a server uses something."""
        for _ in range(times):
            reading = self.host.used[uuid]
            self.host.used[uuid] = dataclasses.replace(
                reading, read_at_s=self.now_s + 1.0, **{
                    name: getattr(reading, name) + used
                    for name, used in used_ns.items()})
            self.tick()

    def busy(self, times):
        """It uses all of its 60 CU, and a third as much for I/O."""
        self.use(times, vcpu_ns=6 * 10**8, emulator_ns=2 * 10**8)

    def set_billing(self, dd_billing, uuid=fakes.UUID):
        """Nova changes the flavor of a server that runs."""
        self.host.domains[uuid] = dataclasses.replace(
            self.host.domains[uuid],
            extra_specs=fakes.make_specs(dd_billing=dd_billing))
        self.host.event(KIND.CHANGED, uuid, detail='metadata')
        self.settle()

    def used_cu_s(self, name='emulator'):
        return self.report()['bill']['used_cu_s'][name]

    def domain(self, uuid=fakes.UUID):
        return self.host.tunes[uuid].domain
