# SPDX-License-Identifier: Apache-2.0
"""What tools/test.sh runs levels, judges and chooses by."""

import argparse
import pathlib
import sys

from nova_vqos.tests.gate import budget
from nova_vqos.tests.gate import record
from nova_vqos.tests.gate import rows
from nova_vqos.tests.gate import running
from nova_vqos.tests.gate import slices


def main(argv=None):
    """:returns: the status of exit"""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index('--') if '--' in words else len(words)
    arguments = _parser().parse_args(words[:end])
    arguments.more = words[end + 1:]
    return arguments.work(arguments)


def _parser():
    parser = argparse.ArgumentParser(
        prog='python -m nova_vqos.tests.gate', description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name, work, text):
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(work=work)
        return made

    one = command('run', _run, 'run a level; pytest gets what comes after --')
    one.add_argument('--markers', default='', help='which tests, as of -m')
    one.add_argument('--measured', action='store_true',
                     help='run those that measure last, alone')
    one.add_argument('--workers', default='',
                     help="of xdist, with its options: '-n 2'")
    one.add_argument('--reports', type=pathlib.Path, default=running.REPORTS,
                     metavar='DIRECTORY', help='default: build/reports')
    one.add_argument('level', help='its name, and its report\'s')
    one.add_argument('tests', nargs='+', help='files and directories')
    one = command('ended', _ended, 'note how a level ended')
    one.add_argument('level')
    one.add_argument('status', type=int)
    one.add_argument('wall_s', type=float)
    one.add_argument('cpu_s', type=float)
    one.add_argument('--part', action='store_true',
                     help='not all of its tests were wanted')
    one = command('table', _table, 'how levels ended')
    one.add_argument('levels', nargs='+')
    command('choose', _choose, 'the slices that a gate runs')
    one = command('slice', _slice, 'level and files of a slice')
    one.add_argument('name', choices=slices.load())
    one = command('budget', _budget, 'whether levels keep their budgets')
    one.add_argument('--write', action='store_true',
                     help='let what they took be their budgets')
    one.add_argument('levels', nargs='+')
    command('check-record', _check_record, 'whether record.json shows faults')
    command('record', _record, 'add the levels that ran to record.json')
    return parser


def _run(arguments):
    run = running.Run(arguments.level, arguments.tests, arguments.markers,
                      arguments.more, arguments.workers.split(),
                      arguments.reports, arguments.measured)
    run.run()
    return 0 if run.passed else 1


def _ended(arguments):
    rows.write(arguments.level, arguments.status, arguments.wall_s,
               arguments.cpu_s, is_whole=not arguments.part)
    return 0


def _table(arguments):
    print('\n'.join(rows.table(rows.read(arguments.levels))))
    return 0


def _choose(_arguments):
    known = slices.load()
    green = record.newest_green(record.load(), known)
    chosen, left = slices.choose(known, record.changed_since(green),
                                 record.ages(green))
    for name in chosen:
        print(f'slice-{name}')
    if left:
        print('The change is about these slices too, which a gate has no time '
              f'for: tools/test.sh {" ".join(f"slice-{one}" for one in left)}',
              file=sys.stderr)
    return 0


def _slice(arguments):
    found = slices.load()[arguments.name]
    print(found.level, *found.tests)
    return 0


def _budget(arguments):
    known = budget.load()
    faults = []
    for level in arguments.levels:
        report = rows.report_of(level)
        if report is None:
            continue
        if arguments.write:
            known['levels'][level] = budget.of_report(report)
        elif level in known['levels']:
            own = known['levels'][level]
            found = list(budget.faults(report, own))
            faults += found
            if found:
                faults += [f'{more_s:+.1f} CPU seconds: {name}' for
                           more_s, name in budget.grew_most(report, own)]
    if arguments.write:
        budget.store(known)
    return _say(faults)


def _check_record(_arguments):
    return _say(list(record.faults(record.load(), budget.load()['flaky'])))


def _record(_arguments):
    runs = record.load()
    found = record.extended(runs, rows.read())
    if len(found) == len(runs):
        return _say(['build/reports has no level that ran since, whole, on a '
                     'commit'])
    record.store(found)
    return 0


def _say(faults):
    for one in faults:
        print(f'error: {one}', file=sys.stderr)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
