# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate recognize: the kinds of work in a trace."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.cmd import options
from nova_vqos.quantum import recognition
from nova_vqos.quantum import recognition_trace


class RecognizeTrace(options.OptionsCommand, lister.Lister):
    """Show the kinds of work that are recognised in a recorded trace.

    The agent records one where [vqos_agent] quantum_trace_path is set. A row
    is of one vCPU, from one change to the next; times are since the trace
    began. The cursors, from 0 to 100, are those at the change. A sensitive
    vCPU whose kind suits any slice does not fill up pools of long slices.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('trace', help='the file')
        parser.add_argument(
            '--limits', type=_limits, metavar='NAME:NUMBER,...', default='',
            help='as [vqos_agent] quantum_limits, to see the effect of other '
                 'limits; default: those of the agent')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        try:
            phases = recognition_trace.replay(
                recognition_trace.load(parsed_args.trace), parsed_args.limits)
        except (OSError, recognition_trace.TraceInvalid) as error:
            raise CalibrationError(
                f'{parsed_args.trace} cannot be replayed: {error}') from error
        return ('server', 'vcpu', 'from_s', 'to_s', 'kind', 'pollutes',
                'sensitive',
                *(f'{kind.value}_cursor' for kind in recognition.ORDER)), [
            (phase.server, phase.vcpu, round(phase.from_s, 3),
             round(phase.to_s, 3),
             None if phase.kind is None else phase.kind.value, phase.pollutes,
             phase.is_sensitive,
             *(None if (cursor := phase.cursors[kind]) is None
               else round(cursor, 1) for kind in recognition.ORDER))
            for phase in phases]


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
