# SPDX-License-Identifier: Apache-2.0
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
