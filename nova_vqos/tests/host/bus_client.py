# SPDX-License-Identifier: Apache-2.0
"""What asks the agents for agents.Client, as a process of its own.

No thread of a test is in another network namespace: what it shares with others
there, such as a socket that the garbage collector closes, would follow it.

It gets calls by a pipe, and answers each with whether it was done, and with
what it returned or raised.
"""

from multiprocessing import connection
import sys

from oslo_config import cfg
import oslo_messaging

from nova_vqos.agent import rpcapi


class Caller:
    """What may be called."""

    def __init__(self, bus):
        # NOTE: oslo.messaging registers the options of its tracing, which
        # every call reads, with this one alone.
        cfg.CONF([], default_config_files=[], default_config_dirs=[])
        self._transport = oslo_messaging.get_rpc_transport(cfg.CONF, bus)
        self._api = rpcapi.AgentAPI(self._transport)

    def ask(self, method, *arguments, **options):
        return getattr(self._api, method)(*arguments, **options)

    def call(self, server, method, timeout, arguments):
        target = oslo_messaging.Target(
            exchange='nova_vqos', topic='vqos-agent', version='1.0',
            server=server)
        raw = oslo_messaging.get_rpc_client(
            self._transport, target, retry=0,
            serializer=oslo_messaging.NoOpSerializer())
        return raw.prepare(timeout=timeout).call({}, method, **arguments)

    @staticmethod
    def submit(work, *arguments):
        return work(*arguments)


def portable(error):
    """:returns: an exception, of a class that there is in other processes"""
    if type(error).__name__.endswith('_Remote'):
        # oslo.messaging makes these of what it lets through.
        return type(error).__base__(*error.args)
    return error


def main(bus, descriptor):
    caller = Caller(bus)
    with connection.Connection(int(descriptor)) as pipe:
        while True:
            try:
                name, arguments, options = pipe.recv()
            except EOFError:
                return
            try:
                answer = True, getattr(caller, name)(*arguments, **options)
            except Exception as error:
                answer = False, portable(error)
            pipe.send(answer)


if __name__ == '__main__':
    main(*sys.argv[1:])
