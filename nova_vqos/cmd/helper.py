# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-helper: writes to libvirt for the agent, which is not root."""

from collections.abc import Mapping
import contextlib
import logging
import os
import socket
import sys

from oslo_config import cfg

from nova_vqos import plain_text
from nova_vqos import version
from nova_vqos.conf import agent
from nova_vqos.conf import vqos
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.libvirt import writer
from nova_vqos.hypervisor.libvirt.helper import server
from nova_vqos.hypervisor.linux import cgroup

PROGRAM = 'nova-vqos-helper'

# The first socket that systemd passes: sd_listen_fds(3).
_FIRST_FD = 3

CLI_OPTS = [
    cfg.BoolOpt('listen', default=False, help="""
Make the socket, [vqos_agent] helper_path, where there is no systemd to pass
it, as in a container. The user and the group of this process can connect.
"""),
]


class NoSocket(Exception):
    """There is no socket to listen on."""


def main(argv: list[str] | None = None) -> int:
    """Run until ended.

    :param argv: arguments, those of the process by default
    :returns: exit status
    """
    conf = cfg.ConfigOpts()
    vqos.register_opts(conf)
    agent.register_opts(conf)
    conf.register_cli_opts(CLI_OPTS)
    try:
        conf(sys.argv[1:] if argv is None else argv, project='nova-vqos',
             prog=PROGRAM, version=version.version(),
             description='Write caps, weights and pins of servers to libvirt '
                         'for nova-vqos-agent. systemd starts it when the '
                         'agent connects to its socket.')
        listening = (make_socket(conf.vqos_agent.helper_path) if conf.listen
                     else take_socket(os.environ))
    except (cfg.Error, NoSocket) as error:
        print(f'{PROGRAM}: {error}', file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.INFO,
                        format='%(levelname)s %(name)s %(message)s')
    # What an attacker in the agent sends is in it.
    plain_text.log_in_one_line()
    session = libvirt_session.Session(conf.vqos_agent.libvirt_uri,
                                      conf.vqos_agent.libvirt_run_path)
    server.HelperServer(session, writer.SessionWriter(
        session, cgroup.host_version('/'))).serve(listening)
    return 0


def take_socket(environment: Mapping[str, str]) -> socket.socket:
    """The socket that systemd listens on for this process.

    :raises NoSocket: when there is none
    """
    if (environment.get('LISTEN_PID') != str(os.getpid())
            or environment.get('LISTEN_FDS') != '1'):
        raise NoSocket('there is no socket: start nova-vqos-helper.socket, '
                       'which starts this program when it is needed, or in a '
                       'container use --listen')
    return socket.socket(fileno=_FIRST_FD)


def make_socket(path: str) -> socket.socket:
    """Listen at a path, in the place of what was there before.

    :raises NoSocket: when it cannot be made there
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o117)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        made.bind(path)
    except OSError as error:
        raise NoSocket(f'cannot listen at {path} ([vqos_agent] helper_path): '
                       f'{error.strerror}') from error
    finally:
        os.umask(before)
    made.listen()
    return made


if __name__ == '__main__':
    sys.exit(main())
