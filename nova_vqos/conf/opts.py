# SPDX-License-Identifier: Apache-2.0
"""All options, for oslo-config-generator."""

from collections.abc import Sequence

from oslo_config import cfg

from nova_vqos.conf import agent
from nova_vqos.conf import manage
from nova_vqos.conf import vendordata
from nova_vqos.conf import vqos


def list_opts() -> list[tuple[cfg.OptGroup | None, Sequence[cfg.Opt]]]:
    """Pairs of a group and its options."""
    return [(None, agent.HOST_OPTS),
            (vqos.GROUP, vqos.OPTS), (agent.GROUP, agent.OPTS),
            (manage.GROUP, manage.OPTS),
            (vendordata.GROUP, vendordata.OPTS)]
