# SPDX-License-Identifier: Apache-2.0
"""The demo where no cloud can be built: everything in this process.

``python -m nova_vqos.tests.functional.embedded [--json FILE]``

Needs no root, no namespaces, no libvirt: Nova's API, scheduler, conductor and
two computes with a fake libvirt, and Placement, on SQLite and a bus in memory.
"""

import argparse
import dataclasses
import json
import logging
import os
import sys
import time
import unittest
import warnings

from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import story

_INTRODUCTION = """\
Embedded: Nova's API, scheduler and conductor, Placement, and two computes
with nova_vqos and a fake libvirt, in one process.
Real: claims, refusals, caps, and re-caps by the hook's own function.
Not here: guests, and so measured speed (delivered: -); tools/demo.sh, as root
on a machine with namespaces and writable cgroups, measures it.
"""


class EmbeddedCloud(base.VqosTestCase):
    """The cloud of the functional tests, for one story."""

    def __init__(self, told):
        super().__init__('tell')
        self._told = told

    def tell(self):
        self._told.tell(self)


def main(argv=None):
    """Tell the story, and write it down.

    :returns: exit status: 0 when every check passed, 1 when one did not,
        2 when the story broke off
    """
    parser = argparse.ArgumentParser(
        prog='python -m nova_vqos.tests.functional.embedded',
        description=__doc__.partition('\n')[0])
    parser.add_argument('--json', metavar='FILE',
                        help='write measurements and checks there')
    arguments = parser.parse_args(argv)
    _be_quiet()
    print(_INTRODUCTION, flush=True)
    started = time.monotonic()
    told = story.Story(lambda line: print(line, flush=True))
    result = unittest.TestResult()
    EmbeddedCloud(told).run(result)
    broken = [text for _case, text in result.errors + result.failures]
    print()
    told.check('told-to-its-end', not broken,
               broken[0].strip().splitlines()[-1] if broken
               else 'in %.0f s' % (time.monotonic() - started))
    if arguments.json:
        _write_json(told, arguments.json)
    _print_table(told)
    if broken:
        # Without the services' log, which comes first.
        print(broken[0].rpartition('}}}')[2].strip(), file=sys.stderr)
        return 2
    return 0 if all(check.passed for check in told.checks) else 1


def _be_quiet():
    """Services log to the test's own log, and to nobody else."""
    # NOTE: Nova's fixtures set filters of their own, by version.
    warnings.showwarning = lambda *_args, **_kwargs: None
    os.environ.setdefault('PYTHONWARNINGS', 'ignore')
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(logging.NullHandler())


def _write_json(told, path):
    with open(path, 'w') as file:
        json.dump({
            'embedded': True,
            'measurements': [dataclasses.asdict(seen)
                             for seen in told.measurements],
            'checks': [dataclasses.asdict(check) for check in told.checks],
        }, file, indent=2)
        file.write('\n')


def _print_table(told):
    print()
    form = '%-6s %-5s %-9s %9s %13s %9s %10s'
    print(form % ('story', 'host', 'moment', 'promised', 'cap',
                  'worth', 'delivered'))
    for seen in told.measurements:
        print(form % (
            seen.story, seen.host, seen.moment, '%g CU' % seen.promised_cu,
            '%s/%s us' % (seen.quota_us, seen.period_us),
            '%.4g CU' % seen.cap_cu, '-'))
    failed = [check for check in told.checks if not check.passed]
    print()
    print('%d checks, %d failed' % (len(told.checks), len(failed)))
    for check in failed:
        print('  FAILED %s: %s' % (check.name, check.detail))


if __name__ == '__main__':
    sys.exit(main())
