#!/usr/bin/env python3
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

"""How well calibrations of one host agree with each other.

Calibrates this host as the reference, then again and again against it, as
``nova-vqos-calibrate cpu`` does by default; what follows ``--`` is handed on
to it. Prints the coefficient of variation (standard deviation relative to the
mean) of the coefficient and of each benchmark in it, beside the mean width of
the confidence intervals: intervals that are honest are about four times as
wide. Takes three to five minutes for each calibration.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from nova_vqos import profile as profiles


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('options', nargs='*', metavar='-- OPTION',
                        help='of nova-vqos-calibrate cpu')
    args = parser.parse_args()
    if args.repeats < 2:
        parser.error('--repeats must be at least 2')
    with tempfile.TemporaryDirectory() as directory:
        reference = pathlib.Path(directory, 'reference')
        _calibrate(['--reference', 'bench'], reference, args.options)
        found = []
        for number in range(args.repeats):
            output = pathlib.Path(directory, str(number))
            _calibrate(['--against', str(reference)], output, args.options)
            found.append(profiles.load(str(output)))
    _print(found)


def _calibrate(how, output, options):
    began = time.monotonic()
    subprocess.run(
        [str(pathlib.Path(sys.executable).with_name('nova-vqos-calibrate')),
         'cpu', *how, '--output', str(output), *options],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    print(f'# a calibration took {time.monotonic() - began:.0f} s',
          file=sys.stderr, flush=True)


def _print(found):
    print(f'{len(found)} calibrations of one host')
    print(f'{"":24}{"":8}{"mean":>8}{"variation":>11}{"interval":>10}')
    for number, cpu_class in enumerate(found[0].cpu_classes):
        print(f'pCPUs {profiles.format_pcpus(cpu_class.pcpus)}')
        for load in ('alone', 'busy'):
            runs = [getattr(f.cpu_classes[number], load) for f in found]
            _print_line('coefficient', load, runs)
            for index, score in enumerate(runs[0].scores):
                _print_line(score.benchmark, load,
                            [run.scores[index] for run in runs])


def _print_line(name, load, runs):
    values = [run.coefficient for run in runs]
    mean = statistics.mean(values)
    width = statistics.mean(run.interval_width for run in runs)
    print(f'  {name:22}{load:8}{mean:8.4f}'
          f'{statistics.stdev(values) / mean:11.2%}{width:10.2%}')


if __name__ == '__main__':
    main()
