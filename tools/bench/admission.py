#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What packing costs a host: time at each admission, and units not sold.

Servers of random flavors come to a host of 256 pCPUs, as many as it takes, by
[vqos] packing = exact. Prints for each set of sizes which part of its units it
has sold before the first refusal, and after 100 more servers were tried; and
how long the full host takes to decide and to find its largest vCPU, in CPU
milliseconds and as a multiple of reading the XML of all its domains (of four
vCPUs each), which comes before; and what that reading is to itself.
"""

import collections
from fractions import Fraction
import functools
import random
import statistics
import time

import against_itself

from nova_vqos import domain_xml
from nova_vqos import packing

PCPUS = 256
TURNS = 7
# CU of a vCPU, on pCPUs of 100 CU.
SIZES = {
    'divide each other': (Fraction(25, 2), 25, 50),
    'of the cookbook': (20, 30, 50, 60, 80),
    'above a half': (55, 60, 70),
    'fifty': tuple(range(10, 60)),
    'small, of 4 vCPUs': tuple(Fraction(cu, 4) for cu in range(60, 200)),
}
XML = """
<domain type='kvm'><name>vm</name><uuid>6f70656e-0000-4000-8000-0</uuid>
 <metadata><n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'>
  <n:flavor name='f'><n:vcpus>4</n:vcpus><n:extraSpecs>
   <n:extraSpec name='resources:CUSTOM_VQOS_CPU_UNIT'>60</n:extraSpec>
  </n:extraSpecs></n:flavor></n:instance></metadata>
 <vcpu>4</vcpu><devices>%s</devices></domain>""" % (
    "<disk type='file'><target dev='vda'/></disk>" * 20)


def measure(work, rounds=3):
    """CPU seconds of a call."""
    begin = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - begin) / rounds


def fill(sizes_cu, draw):
    """A full host, and its CU before the first refusal."""
    host = packing.Pcpus(PCPUS, Fraction(100), collections.Counter())
    sold_cu = first_cu = Fraction(0)
    refused = 0
    while refused < 100:
        vcpu_cu = Fraction(draw.choice(sizes_cu))
        if sold_cu + vcpu_cu <= 100 * PCPUS and host.takes(vcpu_cu):
            host.vcpus[vcpu_cu] += 1
            sold_cu += vcpu_cu
        else:
            first_cu = first_cu or sold_cu
            refused += 1
    return host, first_cu


def main():
    draw = random.Random(1)
    print(f'{PCPUS} pCPUs of 100 CU      vCPUs  first  sold  '
          'decide ms      x  largest ms      x  reading to itself')
    for name, sizes_cu in SIZES.items():
        host, first_cu = fill(sizes_cu, draw)
        vcpus = sum(host.vcpus.values())
        sold_cu = sum(cu * count for cu, count in host.vcpus.items())
        works = (functools.partial(domain_xml.read, XML),
                 functools.partial(host.takes, Fraction(sizes_cu[0])),
                 host.largest_cu)
        # By turns: what disturbs one disturbs all.
        took = [list(map(measure, works)) for _ in range(TURNS)]
        readings, *others = zip(*took, strict=True)
        reading = statistics.median(readings) * vcpus / 4
        decide, largest = map(statistics.median, others)
        print(f'{name:22} {vcpus:6} {float(first_cu / PCPUS):5.1f}% '
              f'{float(sold_cu / PCPUS):4.1f}% {decide * 1e3:9.2f} '
              f'{decide / reading:6.2f} {largest * 1e3:11.2f} '
              f'{largest / reading:6.2f}  {against_itself.noise(readings)}')


if __name__ == '__main__':
    main()
