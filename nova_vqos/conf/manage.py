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

"""Options of nova-vqos-manage."""

from oslo_config import cfg

GROUP = cfg.OptGroup(
    name='vqos_manage',
    title='Command line for operators',
    help='How nova-vqos-manage reaches the agents.')

OPTS = [
    cfg.FloatOpt(
        'timeout_s',
        default=3.0,
        min=0.1,
        max=300.0,
        help="""
Seconds within which an agent has to answer.

All agents are asked at once, so that however many do not answer cost this
time once. Can be given with ``--timeout`` as well.
"""),
    cfg.MultiStrOpt(
        'cells',
        default=[],
        secret=True,
        help="""
Message bus of another cell, as NAME=URL; may be given more than once.

The agents of a cell are reached over the bus of that cell's compute services.
That of ``[DEFAULT] transport_url`` is known already, by the name ``default``.
Example: north=rabbit://user:password@192.0.2.7:5672/
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
