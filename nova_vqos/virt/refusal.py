# SPDX-License-Identifier: Apache-2.0
"""Servers that were moved to a host, and that it refused to start.

What Nova has by then cannot be undone: the server is on this host, and off.
Its owner may reboot it, and it would start as one that has been here before:
in any case, with no cap where there can be none. So its system metadata, which
Nova keeps, has the host that refused it.
"""

from nova.compute import task_states
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_KEY = 'vqos_refused_by'


def record(instance):
    """Remember that a server that was moved here may not start here."""
    if instance.task_state != task_states.RESIZE_FINISH:
        # Nova takes it away again, or leaves it where it was.
        return
    LOG.error('Server %s was moved to this host, which cannot take it: it '
              'stays off until the host can, or it is moved on',
              instance.uuid, instance=instance)
    instance.system_metadata[_KEY] = instance.host
    try:
        instance.save()
    except Exception:
        LOG.exception('It cannot be recorded that the server was refused',
                      instance=instance)


def is_recorded(instance):
    """Whether a server moved to this host, and has not started here yet."""
    return instance.system_metadata.get(_KEY) == instance.host


def clear(instance):
    """Forget it: the server was admitted. Nova saves the server later on."""
    instance.system_metadata.pop(_KEY, None)
