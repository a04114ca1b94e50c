# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-vendordata: what Nova's metadata service asks, for guests."""

# ruff: noqa: E402

import sys

# NOTE: as in nova_vqos.cmd.agent.
sys.modules.setdefault('eventlet', None)  # type: ignore[arg-type]

from oslo_service import backend

backend.init_backend(backend.BackendType.THREADING)

import argparse
import signal
import threading
import typing as ty

from oslo_config import cfg
from oslo_log import log as logging

from nova_vqos import plain_text
from nova_vqos import version
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import connections
from nova_vqos.cmd.manage import errors
from nova_vqos.conf import default_path
from nova_vqos.conf import vendordata
from nova_vqos.vendordata import service

PROGRAM = 'nova-vqos-vendordata'

# NOTE: a signal that another thread takes does not end a wait without a limit.
_WAIT_S = 1.0


def main(argv: list[str] | None = None) -> int:
    """Run until ended.

    :param argv: arguments, those of the process by default
    :returns: exit status
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description='Answer Nova\'s metadata service, so that '
        'guests read their units, speed and billed I/O in vendor_data2.json.')
    parser.add_argument('--version', action='version',
                        version=version.version())
    parser.add_argument(
        '--config-file', metavar='FILE',
        default=default_path.VENDORDATA_CONFIG, help='default: %(default)s')
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    conf = cfg.CONF
    logging.register_options(conf)
    vendordata.register_opts(conf)
    connected = connections.Connections(
        conf, config_file=given.config_file,
        connect=lambda: cloud.connect(None), timeout_s=None)
    try:
        apis = connected.fleet().apis
        logging.setup(conf, 'nova_vqos')
        endpoint = service.make(conf, apis)
    except (errors.ManageError, service.ConfigurationInvalid) as error:
        print(f'{PROGRAM}: {error}', file=sys.stderr)
        return 1
    # Texts of other hosts are in it.
    plain_text.log_in_one_line()
    stopping = threading.Event()

    def stop(*_arguments: ty.Any) -> None:
        stopping.set()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    endpoint.start()
    while not stopping.wait(_WAIT_S):
        pass
    endpoint.stop()
    return 0


if __name__ == '__main__':
    sys.exit(main())
