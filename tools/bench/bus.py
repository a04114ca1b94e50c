#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""A RabbitMQ and one agent on it, in the namespaces that it is started in.

An agent that is alone on its bus asks itself what was pushed, again and again.
Prints the URL of the bus once both are there, and ends with its host.
"""

import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nova_vqos.tests.fixtures import rabbitmq  # noqa: E402


def main() -> int:
    with rabbitmq.running('vqos-bench-bus-') as url, \
            tempfile.TemporaryDirectory(prefix='vqos-bench-peer-') as made:
        config = pathlib.Path(made, 'nova-vqos.conf')
        config.write_text(f'[DEFAULT]\ntransport_url = {url}\n')
        with subprocess.Popen(
                [sys.executable, str(ROOT / 'tools/bench/fleet_agents.py'),
                 'serve', str(config), '0', 'peer'],
                stdout=subprocess.PIPE, env={'PYTHONPATH': str(ROOT)},
                text=True) as peer:
            if (peer.stdout.readline() if peer.stdout else '') != 'ready\n':
                return 1
            print(url, flush=True)
            signal.pause()
    return 0


if __name__ == '__main__':
    sys.exit(main())
