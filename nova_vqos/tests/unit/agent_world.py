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


"""A host, its agent's loop, and a clock that a test turns."""

import threading

from nova_vqos import profile as profiles
from nova_vqos import tuning
from nova_vqos.agent import profile_watch
from nova_vqos.agent import reconciler
from nova_vqos.agent import state
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import fake_hypervisor as fakes

# What 60 CU on two vCPUs are on a pCPU of 100 CU.
RIGHT = base.Limit(15_000, 50_000)


class World:
    """A host, its agent's loop, and a clock that a test turns."""

    def __init__(self, directory, hypervisor=None, profile=True,
                 make_biller=lambda _host, _clock: None, **options):
        """
        :param options: others of the loop
        """
        self.now_s = 1000.0
        self.host = hypervisor or fakes.FakeHypervisor()
        self.profile_path = directory / 'profile.yaml'
        if profile:
            profiles.store(fakes.make_profile(), str(self.profile_path))
        self.state_path = directory / 'run' / 'agent.json'
        self.executor = fakes.InlineExecutor()
        self.loop = reconciler.Reconciler(
            self.host,
            profile_watch.ProfileWatch(
                str(self.profile_path), 0.05,
                fingerprint=lambda _emulator: {'tick_us': '4000'}),
            state.Heartbeat(str(self.state_path), 'host'),
            state.ServiceManager({}), periods=tuning.DEFAULT_PERIODS,
            biller=make_biller(self.host, lambda: self.now_s),
            executor=self.executor, clock=lambda: self.now_s, **options)

    def settle(self):
        """Let the loop work until nothing is left to do at this time."""
        self.loop.step()
        while self.executor.work():
            self.loop.step()

    def tick(self, times=1):
        for _ in range(times):
            self.now_s += 1.0
            self.settle()

    def start(self):
        self.settle()
        self.tick()

    def limits(self, uuid=fakes.UUID):
        return set(self.host.tunes[uuid].vcpus.values())

    def report(self, uuid=fakes.UUID):
        return self.ask(lambda: self.loop.server_report(uuid))

    def host_report(self):
        return self.ask(self.loop.host_report)

    def ask(self, question):
        """Ask as RPC does, from another thread."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(question()))
        thread.start()
        while thread.is_alive():
            self.loop.step()
            thread.join(0.001)
        return answers[0]
