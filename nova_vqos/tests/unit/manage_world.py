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

"""Agents on a bus in memory, and nova-vqos-manage that asks them."""

import contextlib
import io
import json
import logging
import threading
import time

from oslo_config import cfg
import oslo_messaging
from oslo_messaging import conffixture

from nova_vqos.agent import manager
from nova_vqos.agent import service
from nova_vqos.cmd import manage
from nova_vqos.conf import agent as agent_options
from nova_vqos.manage import connections
from nova_vqos.tests.unit import agent_world

LIMIT_S = 20


class Agents:
    """Agents by host: real managers and loops, fake hypervisors.

    :ivar conf: the configuration, whose bus is in memory
    :ivar worlds: see :class:`agent_world.World`, by host
    """

    def __init__(self, directory):
        self._directory = directory
        self._servers = []
        self._stopping = threading.Event()
        self._buses = []
        self.conf = self._make_conf('any')
        self.worlds = {}
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def add(self, host, endpoint=None, world=None,
            compute_state_path=''):
        """Start the agent of a host.

        :param endpoint: answers in place of the agent's own
        :param world: None: one is made
        :param compute_state_path: where its compute service leaves its stats
        :returns: its world
        """
        if world is None:
            directory = self._directory / host
            directory.mkdir()
            world = agent_world.World(directory)
        world.start()
        conf = self._make_conf(host)
        rpc = service.RpcServer(
            conf, endpoint or manager.AgentManager(
                world.loop, host, compute_state_path=compute_state_path))
        rpc.start()
        rpc._started.wait(LIMIT_S)
        self._servers.append(rpc)
        self.worlds[host] = world
        return world

    def wait_for_servers(self):
        """Wait until each host has looked after its own."""
        for world in self.worlds.values():
            wait_until(lambda: world.host.written)  # noqa: B023

    def transport(self):
        return oslo_messaging.get_rpc_transport(self.conf)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.stop()

    def stop(self):
        for rpc in self._servers:
            rpc.stop()
        self._stopping.set()
        self._thread.join()
        for bus in self._buses:
            bus.cleanUp()

    def _make_conf(self, host):
        conf = cfg.ConfigOpts()
        agent_options.register_opts(conf)
        agent_options.register_host_opts(conf)
        conf([], default_config_files=[])
        conf.set_override('host', host)
        bus = conffixture.ConfFixture(conf, transport_url='fake://')
        bus.setUp()
        self._buses.append(bus)
        return conf

    def _work(self):
        while not self._stopping.is_set():
            for world in list(self.worlds.values()):
                world.settle()
            time.sleep(0.002)


def wait_until(condition):
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, 'not within the limit'
        time.sleep(0.01)


class Ran:
    """What a run of the program gave: status, out and err."""

    def __init__(self, status, out, err):
        self.status = status
        self.out = out
        self.err = err

    @property
    def json(self):
        return json.loads(self.out)


def run(*arguments, config=None, cloud=None):
    """Run nova-vqos-manage.

    :param config: path of its configuration
    :param cloud: in place of Nova
    """
    out, err = io.StringIO(), io.StringIO()
    conf = cfg.ConfigOpts()
    # oslo.messaging registers some options with cfg.CONF alone.
    options = conffixture.ConfFixture(conf)
    options.setUp()
    app = manage.ManageApp(conf, stdout=out, stderr=err)
    if cloud is not None:
        class Connections(connections.Connections):
            def cloud(self):
                return cloud
        app.connections_class = Connections
    given = [] if config is None else ['--config-file', str(config)]
    try:
        with logging_of_one_program():
            status = app.run([*given, *arguments])
    except SystemExit as error:
        status = error.code
    finally:
        options.cleanUp()
    return Ran(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def logging_of_one_program():
    """Keep what agents log out of what the program prints.

    They are threads of this process, and another's elsewhere.
    """
    handlers = list(logging.root.handlers)
    agents = logging.getLogger('nova_vqos')
    levels = {name: logging.getLogger(name).level
              for name in manage._TALKATIVE}
    agents.propagate = False
    try:
        yield
    finally:
        agents.propagate = True
        logging.root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
