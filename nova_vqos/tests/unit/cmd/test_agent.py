# SPDX-License-Identifier: Apache-2.0
import logging

from oslo_config import cfg
from oslo_log import log

from nova_vqos.cmd import agent
from nova_vqos.conf import agent as options


def test_the_agents_lines_name_the_host():
    """They are oslo.log's otherwise."""
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    assert agent.log_line('-') == conf.logging_default_format_string
    record = logging.makeLogRecord({'msg': 'A line', 'instance': ''})
    assert '[host%2] A line' in logging.Formatter(
        agent.log_line('host%2')).format(record)


def test_no_metrics_where_they_are_not_wanted():
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf([])
    assert agent.start_exporter(conf, None) is None
