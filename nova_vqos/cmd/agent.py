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

"""nova-vqos-agent: keeps the caps of the servers on this host."""

# ruff: noqa: E402

import sys

# NOTE: futurist, below oslo.service and oslo.messaging, imports eventlet
# wherever it is installed, and it is beside Nova. Without it the agent is
# 20 MiB smaller, and sure to run on real threads. oslo.reports would look for
# green threads.
for _name in 'eventlet', 'greenlet':
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

import logging as python_logging

from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import service

from nova_vqos import version
from nova_vqos.agent import service as agent_service
from nova_vqos.agent import state
from nova_vqos.conf import agent as agent_options
from nova_vqos.conf import vqos as vqos_options

LOG = python_logging.getLogger(__name__)

# As oslo.log's default.
_LINE = ('%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s [-] '
         '%(instance)s%(message)s')


def main(argv: list[str] | None = None) -> int:
    """Run until stopped.

    :param argv: arguments, those of the process by default
    :returns: exit status
    """
    conf = cfg.CONF
    logging.register_options(conf)
    vqos_options.register_opts(conf)
    agent_options.register_opts(conf)
    agent_options.register_host_opts(conf)
    conf(sys.argv[1:] if argv is None else argv, project='nova-vqos',
         version=version.version())
    conf.set_default('logging_default_format_string', log_line(conf.host))
    logging.setup(conf, 'nova_vqos')
    try:
        # One process: a second one would double the memory, and systemd
        # restarts an agent that dies.
        service.launch(conf, agent_service.AgentService(conf), workers=1,
                       restart_method='mutate', no_fork=True).wait()
    except state.AlreadyRunning as error:
        LOG.error('%s', error)
        print(f'nova-vqos-agent: {error}', file=sys.stderr)
        return 1
    return 0


def log_line(host: str) -> str:
    """The format of a line of the log, with the host in it.

    Logs of many hosts are read in one place.
    """
    # Where others name the request, of which the agent has none.
    return _LINE.replace('[-]', f'[{host.replace("%", "%%")}]')


if __name__ == '__main__':
    sys.exit(main())
