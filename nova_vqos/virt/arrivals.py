# SPDX-License-Identifier: Apache-2.0
"""Servers that came with another policy than Nova's record has.

In a live migration the guest's XML comes from the other host, and the policy
with it: hook and agent cap the guest by that. So the record is asked once the
guest is here, and an alarm says what differs. A hard reboot makes the XML
anew.
"""

from oslo_log import log as logging

from nova import exception
from nova_vqos import compute_state
from nova_vqos import domain_xml
from nova_vqos import policy as policies

LOG = logging.getLogger(__name__)


class Arrivals:
    """The servers of a host that came with another policy."""

    def __init__(self, host):
        """:param host: nova.virt.libvirt.host.Host"""
        self._host = host
        self._unlike = {}

    def check(self, instance):
        """Compare the guest of a server with its flavor. Never raises.

        :returns: whether there is something to report
        """
        try:
            difference = self._difference(instance)
        except Exception:
            LOG.exception('It is not known whether the guest has the CPU '
                          "units of the server's flavor", instance=instance)
            return False
        if not difference:
            return False
        LOG.error('The server came from another host with %s: reboot it hard',
                  difference, instance=instance)
        self._unlike[instance.uuid] = instance
        while len(self._unlike) > compute_state.MOST_ALARMS:
            self._unlike.pop(next(iter(self._unlike)))
        return True

    def alarms(self):
        """What differs now, as one text for each server. Never raises."""
        found = []
        for uuid, instance in list(self._unlike.items()):
            try:
                difference = self._difference(instance)
            except exception.InstanceNotFound:
                difference = ''
            except Exception as error:
                difference = f'what cannot be read now: {error}'
            if difference:
                found.append(f'server {uuid} came from another host with '
                             f'{difference}: reboot it hard')
            else:
                self._unlike.pop(uuid, None)
        return found

    def _difference(self, instance):
        """What of the guest's policy is unlike the flavor's; '': nothing.

        :raises nova.exception.InstanceNotFound: when it is not here any more
        """
        xml = self._host.get_guest(instance).get_xml_desc()
        found = domain_xml.read(xml)
        flavor = instance.flavor
        has = _policy(found.extra_specs or {}, found.vcpus)
        wanted = _policy(flavor.extra_specs, flavor.vcpus)
        return '; '.join(
            f'{name} {has.get(name, "unset")}, by Nova '
            f'{wanted.get(name, "unset")}'
            for name in sorted(has.keys() | wanted.keys())
            if has.get(name) != wanted.get(name))


def _policy(extra_specs, vcpus):
    """A policy by its fields, or what is wrong with it."""
    try:
        policy = policies.parse(extra_specs, vcpus or 0)
    except policies.PolicyError as error:
        return {'policy': ascii(str(error))}
    return {} if policy is None else policy._asdict()
