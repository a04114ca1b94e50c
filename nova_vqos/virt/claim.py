# SPDX-License-Identifier: Apache-2.0
"""The CPU units that an arriving server holds of its host in Placement.

NOTE: Nova claims by its request spec, which keeps the flavor of a resize that
failed on its compute host (nova/conductor/manager.py): the server's next move
claims other units than it will run with.
"""

from nova.scheduler.client import report
from oslo_log import log as logging

from nova_vqos import policy
from nova_vqos.virt import admission

LOG = logging.getLogger(__name__)

# Of Placement: generations of consumers. Nova uses the same.
_VERSION = '1.28'
_CONFLICT = 409
_CONCURRENT = 'placement.concurrent_update'
# While others change the same provider.
_TRIES = 3


class NoRoom(admission.CannotServe):
    """The claim is too small, and Placement has no more units."""


def correct(context, server_uuid, provider, units_cu, held=None):
    """Set a server's units of this host in Placement to those of its flavor.

    Where Placement cannot be asked, or the server holds nothing of this host,
    the claim stays as it is. A request takes [placement] timeout at most, as
    Nova's own do.

    :param provider: UUID of this host's resource provider; None: not known
    :param units_cu: of the flavor; 0: none
    :param held: the allocations of the server, as Nova read them; None: they
        are read
    :raises NoRoom: when there are fewer left than it needs
    """
    is_full = False
    try:
        client = report.report_client_singleton()
        for _ in range(_TRIES):
            if held is not None and not _differs(held, provider, units_cu):
                return
            body = client.get_allocs_for_consumer(context, server_uuid)
            held = body['allocations']
            if not _differs(held, provider, units_cu):
                return
            resources = held[provider]['resources']
            held_cu = resources.pop(policy.RESOURCE_CLASS, 0)
            if units_cu:
                resources[policy.RESOURCE_CLASS] = units_cu
            answer = client.put(
                f'/allocations/{server_uuid}', body, version=_VERSION,
                global_request_id=context.global_id)
            if answer.status_code != _CONFLICT:
                break
            is_full = answer.json()['errors'][0]['code'] != _CONCURRENT
            if is_full:
                break
            held = None
    except Exception as error:
        LOG.warning('The claim of server %s was not compared with its flavor, '
                    'which has %d CU: %s', server_uuid, units_cu, error)
        return
    if answer.status_code < 300:
        LOG.warning('Server %s held %d CU of this host, and its flavor has '
                    '%d: its claim was corrected', server_uuid, held_cu,
                    units_cu)
    elif is_full and units_cu > held_cu:
        raise NoRoom(f'the server holds {held_cu} CU of this host, its flavor '
                     f'has {units_cu}, and Placement has no more left')
    else:
        LOG.warning('Server %s holds %d CU of this host, and its flavor has '
                    '%d: Placement refused the correction (%d)', server_uuid,
                    held_cu, units_cu, answer.status_code)


def _differs(held, provider, units_cu):
    return (bool(held) and provider in held
            and held[provider]['resources'].get(policy.RESOURCE_CLASS, 0)
            != units_cu)
