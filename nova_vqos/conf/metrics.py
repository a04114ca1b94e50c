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

"""Options of the agent's metrics."""

from oslo_config import cfg

OPTS = [
    # NOTE: Prometheus' list of ports for exporters, 9100 to 9999, is nearly
    # full. This one is beyond it, and below those that Linux hands out.
    cfg.PortOpt(
        'metrics_port',
        default=19177,
        help="""
Port on which Prometheus finds the agent's metrics, below ``/metrics``. 0:
there are none.

A port that is taken is logged, and tried again every 30 s.
"""),
    cfg.IPOpt(
        'metrics_address',
        default='127.0.0.1',
        help="""
Address on which the agent listens for Prometheus.

Whoever can reach it reads the names of all servers and what they do: there is
neither encryption nor a password. So let it be the loopback, behind a proxy
that has both, or an address that only Prometheus can reach.
"""),
]
