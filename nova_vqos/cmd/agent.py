# SPDX-License-Identifier: Apache-2.0
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

from collections.abc import Callable
import logging as python_logging
import typing as ty

from oslo_config import cfg
from oslo_log import log as logging
from oslo_service import service

from nova_vqos import plain_text
from nova_vqos import version
from nova_vqos.agent import process
from nova_vqos.agent import service as agent_service
from nova_vqos.conf import agent
from nova_vqos.conf import vqos

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
    vqos.register_opts(conf)
    agent.register_opts(conf)
    agent.register_host_opts(conf)
    conf(sys.argv[1:] if argv is None else argv, project='nova-vqos',
         version=version.version())
    conf.set_default('logging_default_format_string', log_line(conf.host))
    logging.setup(conf, 'nova_vqos')
    # Texts of other hosts and of flavors are in it.
    plain_text.log_in_one_line()
    try:
        # One process: a second one would double the memory, and systemd
        # restarts an agent that dies.
        service.launch(conf, agent_service.AgentService(
            conf, start_exporter), workers=1,
                       restart_method='mutate', no_fork=True).wait()
    except process.AlreadyRunning as error:
        LOG.error('%s', error)
        print(f'nova-vqos-agent: {error}', file=sys.stderr)
        return 1
    return 0


def start_exporter(conf: cfg.ConfigOpts, ask: ty.Any
                   ) -> Callable[[], None] | None:
    """Begin to export metrics, where an address is configured.

    :param ask: see :func:`nova_vqos.metrics.endpoint.start_exporter`
    :returns: ends the export; None: metrics are off
    """
    if not conf.vqos_agent.metrics_address:
        return None
    # Not loaded without metrics: it takes 2 MiB.
    from nova_vqos.metrics import endpoint
    return endpoint.start_exporter(conf, ask)


def log_line(host: str) -> str:
    """The format of a line of the log, with the host in it.

    Logs of many hosts are read in one place.
    """
    # Where others name the request, of which the agent has none.
    return _LINE.replace('[-]', f'[{host.replace("%", "%%")}]')


if __name__ == '__main__':
    sys.exit(main())
