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

"""The agent's watch, as the configuration says."""

from oslo_config import cfg
import pytest

from nova_vqos.agent import watching
from nova_vqos.conf import agent as conf_agent
from nova_vqos.quantum import recognition
from nova_vqos.quantum import trace
from nova_vqos.tests.unit import fake_hypervisor as fakes

UUID = fakes.UUID


@pytest.fixture
def make(tmp_path):
    made = []

    def make_watch(**options):
        path = tmp_path / 'nova-vqos.conf'
        path.write_text('\n'.join(['[vqos_agent]', *(
            f'{name} = {value}' for name, value in options.items())]))
        conf = cfg.ConfigOpts()
        conf_agent.register_opts(conf)
        conf([], default_config_files=[str(path)])
        made.append(watching.make_watch(conf.vqos_agent,
                                        fakes.FakeHypervisor()))
        return made[-1]
    yield make_watch
    for one in made:
        one.close()


def test_by_default_all_sources_are_asked_and_nothing_is_written(make):
    made = make()
    made.look({UUID: {0: 1}}, 10)
    assert set(made.status()) == {'io', 'spin', 'cache'}


def test_a_timer_that_is_early_is_no_obstacle(make, tmp_path):
    path = str(tmp_path / 'trace')
    made = make(quantum_trace_path=path, quantum_sources='',
                quantum_interval_s=10)
    for now_s in (100, 101, 109.9, 112, 119.8):
        made.look({UUID: {0: 1}}, now_s)
    assert [record.at_s for record in trace.load(path)] == [100, 109.9, 119.8]


def test_sources_are_found_by_name(make):
    made = make(quantum_sources='spin, nonsense')
    assert made.status()['nonsense'] == "no source 'nonsense' is installed"
    assert 'looked at' in made.status()['spin']
    made.look({UUID: {0: 1}}, 10)


def test_limits_that_cannot_be_are_refused(make):
    with pytest.raises(recognition.LimitInvalid, match="'io' is '0'"):
        make(quantum_limits='misses:7,io:0')


def test_a_trace_is_written(make, tmp_path):
    path = str(tmp_path / 'trace')
    made = make(quantum_trace_path=path, quantum_sources='')
    made.look({UUID: {0: 1}}, 10)
    record, = trace.load(path)
    assert (record.server, record.vcpu, record.thread) == (UUID, 0, 1)


def test_a_trace_that_cannot_be_written_is_no_obstacle(make, tmp_path,
                                                       caplog):
    made = make(quantum_trace_path=str(tmp_path / 'no' / 'trace'),
                quantum_sources='')
    made.look({UUID: {0: 1}}, 10)
    assert 'No trace is written' in caplog.text
