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

"""The agent's watch over servers that are to be recognised."""

import logging
import typing as ty

from nova_vqos.hypervisor import base
from nova_vqos.quantum import recognition
from nova_vqos.quantum import trace
from nova_vqos.quantum import watch
from nova_vqos.quantum.sources import loading

LOG = logging.getLogger(__name__)

# A look may come by so much before its time, as timers do. What comes sooner,
# for a server that has just started, sees too little of the others.
_EARLY = 0.8


def make_watch(options: ty.Any, hypervisor: base.Hypervisor) -> watch.Watch:
    """What the configuration says.

    A trace that cannot be written is no reason not to watch.

    :param options: the group ``vqos_agent``
    :raises nova_vqos.quantum.recognition.LimitInvalid: when a limit cannot be
    """
    limits = recognition.limits(options.quantum_limits)
    recorder = None
    if options.quantum_trace_path:
        try:
            recorder = trace.Recorder(options.quantum_trace_path)
        except OSError as error:
            LOG.error('No trace is written to %s: %s',
                      options.quantum_trace_path, error)
    return watch.Watch(loading.load(options.quantum_sources), limits,
                       hypervisor.activity, recorder=recorder,
                       period_s=_EARLY * options.quantum_interval_s)
