# SPDX-License-Identifier: Apache-2.0
"""A host that guarantees speed, and what it is to reserve for a server."""

from nova_vqos import agent_state
from nova_vqos import units
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes

# Of 60 CU on two vCPUs, on pCPUs of 100 CU, for each vCPU and I/O thread.
VCPU = units.CpuCap(15_000, 50_000)
IO = units.CpuCap(1_000, 20_000)
RESERVED = VCPU, IO
# Of class io, with runtimes of two ticks at least.
SHORT = units.CpuCap(8_000, 26_667)


class World(agent.World):
    """Boots servers that are guaranteed their speed."""

    def __init__(self, directory, **options):
        super().__init__(directory, **{'guarantees_speed': True, **options})

    def boot(self, uuid=fakes.UUID, guarantee='required', **options):
        super().boot(uuid, **{
            'specs': fakes.make_specs(guarantee=guarantee), **options})

    def state(self):
        return agent_state.from_text(
            self.state_path.read_text(encoding='utf-8'))

    def guarantee(self, uuid=fakes.UUID):
        return self.report(uuid)['guarantee']

    def alarms(self, uuid=fakes.UUID):
        """Those of its host that are about a server."""
        return [alarm for alarm in self.host_report()['alarms']
                if uuid in alarm]
