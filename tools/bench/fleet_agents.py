# SPDX-License-Identifier: Apache-2.0
"""The other processes of fleet.py: agents, and one who asks them in turn.

fleet_agents.py serve CONFIG SERVERS HOST...: be the agents of these hosts.
fleet_agents.py ask CONFIG HOST...: ask one after the other.
"""

import contextlib
import logging
import pathlib
import signal
import sys
import threading
import uuid

# As nova_vqos.cmd.agent does.
sys.modules.setdefault('eventlet', None)

from oslo_service import backend  # noqa: E402

backend.init_backend(backend.BackendType.THREADING)

from oslo_config import cfg  # noqa: E402
import oslo_messaging  # noqa: E402

from nova_vqos import cputune  # noqa: E402
from nova_vqos.agent import heartbeat  # noqa: E402
from nova_vqos.agent import loop as loops  # noqa: E402
from nova_vqos.agent import manager  # noqa: E402
from nova_vqos.agent import process  # noqa: E402
from nova_vqos.agent import profile_watch  # noqa: E402
from nova_vqos.agent import rpcapi  # noqa: E402
from nova_vqos.agent import service  # noqa: E402
from nova_vqos.agent.overrides import receiver  # noqa: E402
from nova_vqos.agent.overrides import store  # noqa: E402
from nova_vqos.conf import agent  # noqa: E402
from nova_vqos.profile import document  # noqa: E402
from nova_vqos.tests.fixtures import fakes  # noqa: E402

START_LIMIT_S = 180
PCPUS = 64
# Fifty loops in one process must not be what is measured.
TICK_INTERVAL_S = 30.0


def serve(config: str, servers: int, names: list[str]) -> None:
    """Be the agents of hosts until killed."""
    logging.disable(logging.WARNING)
    directory = pathlib.Path(config).parent
    # oslo.messaging reads options that it has registered with this one alone.
    conf = cfg.CONF
    agent.register_opts(conf)
    agent.register_host_opts(conf)
    conf([], default_config_files=[config], default_config_dirs=[])
    for name in names:
        conf.set_override('host', name)
        start(directory, conf, name, servers)
    print('ready', flush=True)
    signal.pause()


def start(directory: pathlib.Path, conf: cfg.ConfigOpts, name: str,
          servers: int) -> None:
    """Start the agent of a host: RPC server, manager and loop."""
    host = fakes.FakeHypervisor()
    for number in range(servers):
        host.boot(str(uuid.uuid4()), specs=fakes.make_specs(),
                  run_id=number + 1)
    path = directory / f'{name}.yaml'
    document.store(fakes.make_profile(pcpus=tuple(range(PCPUS))), str(path))
    loop = loops.Loop(
        host, profile_watch.ProfileWatch(
            str(path), 0.05, fingerprint=lambda _: {'tick_us': '4000'}),
        heartbeat.Heartbeat(str(directory / f'{name}.json'), name, 60.0),
        process.ServiceManager({}), periods=cputune.DEFAULT_PERIODS,
        tick_interval_s=TICK_INTERVAL_S)
    threading.Thread(target=loop.run, daemon=True).start()
    rpc = service.RpcServer(conf, manager.AgentManager(
        loop, name, push_receiver=receiver.Receiver(
            store.OverrideStore(str(directory / f'{name}-pushed.json')),
            loop.follow_pushed, loop.pushed_report, name)))
    rpc.start()
    if not rpc._started.wait(START_LIMIT_S):
        raise TimeoutError('an agent does not reach the bus')


def ask(config: str, names: list[str]) -> None:
    cfg.CONF([], default_config_files=[config], default_config_dirs=[])
    api = rpcapi.AgentAPI(oslo_messaging.get_rpc_transport(cfg.CONF))
    for name in names:
        with contextlib.suppress(oslo_messaging.MessagingTimeout):
            api.call(name, rpcapi.GET_HOST, timeout=3)


if __name__ == '__main__':
    if sys.argv[1] == 'serve':
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    else:
        ask(sys.argv[2], sys.argv[3:])
