# SPDX-License-Identifier: Apache-2.0
"""Floods a server with UDP frames, as fast as one pCPU sends them.

Run it in the network namespace of the interface that sends, as root; it ends
by itself, and prints that it begins::

    python -m nova_vqos.tests.host.frame_flood eth0 MAC ADDRESS PCPU SECONDS
"""

import os
import sys
import time

from nova_vqos.calibration import system
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic

_FRAME_BYTES = 64
_BURST = 64
_PRIORITY = -19
_MAC, _ADDRESS = '02:00:00:00:02:00', '198.18.1.1'
# The discard service, which no guest has.
_PORTS = (4000, 9)


def main():
    interface, mac, address, pcpu, length_s = sys.argv[1:]
    os.sched_setaffinity(0, {int(pcpu)})
    # Whatever else this machine does.
    os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    burst = system.Burst(tap.HEADER + traffic.frame(
        mac, _MAC, traffic.IPV4, traffic.datagram(
            _ADDRESS, address, _PORTS, _FRAME_BYTES)), _BURST)
    with traffic._sending_from(interface) as sending:
        print('sending', flush=True)
        ends_s = time.monotonic() + float(length_s)
        while time.monotonic() < ends_s:
            burst.send(sending.fileno())


if __name__ == '__main__':
    main()
