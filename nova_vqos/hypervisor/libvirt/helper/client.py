# SPDX-License-Identifier: Apache-2.0
"""The agent's end of the helper's socket."""

from collections.abc import Collection, Mapping, Sequence, Set
import socket
import typing as ty

from nova_vqos import cpuset
from nova_vqos import units
from nova_vqos.billing import throttle
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import writer
from nova_vqos.hypervisor.libvirt.helper import protocol

# libvirt itself gives up on a domain that is held for 30 s.
_TIMEOUT_S = 60.0


class HelperClient(writer.Writer):
    """Asks nova-vqos-helper; each request has a connection of its own."""

    def __init__(self, path: str, timeout_s: float = _TIMEOUT_S) -> None:
        """
        :param path: of the helper's socket
        :param timeout_s: of one request
        """
        self._path = path
        self._timeout_s = timeout_s

    def check(self) -> None:
        self._ask('check')

    def write(self, uuid: str, changes: Sequence[base.Change]) -> None:
        self._ask('write', uuid=uuid,
                  changes=protocol.encode_changes(changes))

    def persist(self, uuid: str, cap: units.CpuCap | None,
                shares: int) -> bool:
        return self._ask('persist', uuid=uuid, shares=shares,
                         cap=None if cap is None else list(cap))

    def limit_disks(self, uuid: str,
                    limit: throttle.DiskLimit | None) -> bool:
        return self._ask('limit_disks', uuid=uuid,
                         disk_limit=None if limit is None else list(limit))

    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        self._ask('pin', uuid=uuid, pcpus=cpuset.format_pcpus(pcpus))

    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        return self._ask('place', uuid=uuid,
                         pins=protocol.encode_pins(pcpus_by_vcpu))

    def restore_pins(self, uuid: str, vcpus: Collection[int],
                     pcpus: Set[int]) -> None:
        self._ask('restore_pins', uuid=uuid, vcpus=sorted(vcpus),
                  pcpus=cpuset.format_pcpus(pcpus))

    def _ask(self, method: str, **fields: ty.Any) -> bool:
        request = protocol.encode({'method': method, **fields})
        try:
            with socket.socket(socket.AF_UNIX,
                               socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(self._path)
                connection.send(request)
                answer = connection.recv(protocol.MOST_BYTES)
        except TimeoutError as error:
            # One domain that hangs; the others can be written.
            raise base.HypervisorError(
                f'nova-vqos-helper has not answered within '
                f'{self._timeout_s:g} s') from error
        except OSError as error:
            raise base.Unavailable(
                f'nova-vqos-helper at {self._path} cannot be reached: '
                f'{error}') from error
        return protocol.decode_answer(answer)
