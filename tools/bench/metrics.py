#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What a scrape of an agent's metrics costs, by how many servers there are.

Takes no host: the answers of the agent are made up, with all fields
of a server (charged, of a class, two vCPUs). Prints series and bytes for each
server, plain and zipped, which are exact, and in the median the CPU time of a
zipped page, relative to one without servers and to one whose text is made by
prometheus_client, in turns: of the time only ratios are of use, the rest is
the machine's.

  tools/bench/metrics.py --servers 0 100 1000
"""

import argparse
from collections.abc import Callable
import functools
import gzip
import pathlib
import statistics
import sys
import tempfile
import time
import uuid

import prometheus_client

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos.metrics import endpoint
from nova_vqos.tests.fixtures import library_text
from nova_vqos.tests.fixtures import metrics


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=(
        argparse.RawDescriptionHelpFormatter))
    parser.add_argument('--servers', type=int, nargs='+',
                        default=[0, 1, 10, 100, 1000])
    parser.add_argument('--rounds', type=int, default=15)
    options = parser.parse_args()
    print('servers  series  each  bytes each  zipped each  time, none = 1  '
          'library = 1  CPU seconds')
    nothing: tuple[int, int, int, float, float] | None = None
    for count in sorted({0, *options.servers}):
        found = measure(count, options.rounds)
        nothing = nothing or found
        series, plain, zipped, cpu_s, library_s = found
        each = [(now - then) / max(1, count) for now, then in zip(
            found[:3], nothing[:3], strict=True)]
        print(f'{count:7}{series:8}{each[0]:6.1f}{each[1]:12.0f}'
              f'{each[2]:13.1f}{cpu_s / nothing[3]:16.1f}'
              f'{cpu_s / library_s:13.2f}{cpu_s:13.4f}')
    return 0


def measure(count: int, rounds: int) -> tuple[int, int, int, float, float]:
    """:returns: series, bytes plain and zipped, CPU seconds of a page, and
        of one by prometheus_client
    """
    with tempfile.TemporaryDirectory() as directory:
        agent = metrics.Agent(pathlib.Path(directory))
        agent.servers = [metrics.make_server(
            server_uuid=str(uuid.uuid4()), name=f'instance-{number:08x}')
            for number in range(count)]
        snapshot = agent.snapshot()
        agent.snapshot = lambda: snapshot
        library = library_text.Collector(agent.samples)
        took_s: dict[Callable[[], bytes], list[float]] = {
            agent.page: [],
            functools.partial(prometheus_client.generate_latest, library): []}
        for _ in range(rounds):
            for make, times_s in took_s.items():
                # What makes it at each scrape, without what it remembers.
                page = endpoint.Page(make)
                began_s = time.thread_time()
                page.read(zipped=True)
                times_s.append(time.thread_time() - began_s)
        plain = agent.page()
        own_s, library_s = map(statistics.median, took_s.values())
        return (len(metrics.parse(plain.decode())), len(plain),
                len(gzip.compress(plain, 3)), own_s, library_s)


if __name__ == '__main__':
    sys.exit(main())
