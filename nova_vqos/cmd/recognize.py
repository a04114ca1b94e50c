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

"""nova-vqos-calibrate: what a trace of servers' work is taken for."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.quantum import recognition
from nova_vqos.quantum import replay
from nova_vqos.quantum import trace


class RecognizeTrace(lister.Lister):
    """Say what the vCPUs of a recorded trace are taken for, over time.

    The agent records one where [vqos_agent] quantum_trace_path is set. A line
    is of one vCPU, from one change of its kind to the next; times are since
    the trace began. The cursors, from 0 to 100, are those at the change.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('trace', help='the file')
        parser.add_argument(
            '--limits', type=_limits, metavar='NAME:NUMBER,...', default='',
            help='as [vqos_agent] quantum_limits, to see what others would '
                 'do; default: those of the agent')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        try:
            spells = replay.spells(trace.load(parsed_args.trace),
                                   parsed_args.limits)
        except (OSError, trace.TraceInvalid) as error:
            raise CalibrationError(
                f'{parsed_args.trace} cannot be replayed: {error}') from error
        return ('server', 'vcpu', 'from_s', 'to_s', 'kind', 'pollutes',
                *(f'{kind.value}_cursor' for kind in recognition.ORDER)), [
            (spell.server, spell.vcpu, round(spell.from_s, 3),
             round(spell.to_s, 3),
             None if spell.kind is None else spell.kind.value, spell.pollutes,
             *(_rounded(spell.cursors[kind]) for kind in recognition.ORDER))
            for spell in spells]


def _limits(text: str) -> recognition.Limits:
    given: dict[str, str] = {}
    for pair in filter(None, text.split(',')):
        name, _colon, value = pair.partition(':')
        if name in given:
            raise argparse.ArgumentTypeError(f'{name!r} is given twice')
        given[name] = value
    try:
        return recognition.limits(given)
    except recognition.LimitInvalid as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rounded(cursor: float | None) -> float | None:
    return None if cursor is None else round(cursor, 1)
