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

"""Makes tempest find these tests and their options."""

import os

from tempest.test_discover import plugins

from nova_vqos_tempest_plugin import config

_TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class NovaVqosTempestPlugin(plugins.TempestPlugin):
    """The entry point of tempest.test_plugins."""

    def load_tests(self):
        """Where the tests are."""
        return os.path.join(_TOP, 'nova_vqos_tempest_plugin', 'tests'), _TOP

    def register_opts(self, conf):
        """Add our options to tempest's."""
        conf.register_group(config.GROUP)
        conf.register_opts(config.OPTIONS, config.GROUP)

    def get_opt_lists(self):
        """Our options, for tempest's sample configuration."""
        return [(config.GROUP.name, config.OPTIONS)]
