# SPDX-License-Identifier: Apache-2.0
"""What guests of a host reach as 169.254.169.254, and that asks Nova.

Run on a host, by nothing but vendordata.py:

    python -m nova_vqos_lab.metadata_proxy ADDRESS URL

It does what the metadata agents of Neutron do: it says which server asks, and
signs that with the secret in the environment variable METADATA_SECRET. Neutron
knows servers by their ports; here libvirt knows them, by the interface that
has the address of the one who asks.
"""

from collections.abc import Iterable
import contextlib
import hashlib
import hmac
import http.server
import os
import sys
import urllib.error
import urllib.request

import libvirt

from nova_vqos import domain_xml
from nova_vqos_lab import guest_link

#: Names the environment variable with what signs.
SECRET = 'METADATA_SECRET'
PORT = 80
_LIMIT_S = 15


class _Server(http.server.ThreadingHTTPServer):
    """Answers guests by what Nova's metadata service says."""

    daemon_threads = True

    def __init__(self, address: str, url: str, secret: bytes) -> None:
        super().__init__((address, PORT), _Handler)
        self.url = url
        self.secret = secret


class _Handler(http.server.BaseHTTPRequestHandler):

    server: _Server
    timeout = _LIMIT_S

    def do_GET(self) -> None:
        """Ask Nova in the name of the server that asks."""
        address = self.client_address[0]
        found = _owner(guest_link.mac_of(address))
        if found is None:
            self.send_error(404, f'no guest of this host has {address}')
            return
        server_uuid, project_id = found
        request = urllib.request.Request(self.server.url + self.path, headers={
            'X-Instance-ID': server_uuid, 'X-Tenant-ID': project_id,
            'X-Forwarded-For': address,
            'X-Instance-ID-Signature': hmac.new(
                self.server.secret, server_uuid.encode(),
                hashlib.sha256).hexdigest()})
        try:
            with _OPENER.open(request, timeout=_LIMIT_S) as answer:
                self._answer(answer.status, answer.headers.items(),
                             answer.read())
        except urllib.error.HTTPError as error:
            with error:
                self._answer(error.code, error.headers.items(), error.read())
        except OSError as error:
            self.send_error(502, str(error))

    def _answer(self, status: int, headers: Iterable[tuple[str, str]],
                body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() == 'content-type':
                self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)


# The lab is reached directly, whatever proxy the machine uses.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _owner(mac: str) -> tuple[str, str] | None:
    """The server with an interface, and its project; None: none has it."""
    with contextlib.closing(
            libvirt.openReadOnly('qemu:///system')) as connection:
        for domain in connection.listAllDomains(
                libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            # It may end by itself.
            with contextlib.suppress(libvirt.libvirtError):
                xml = domain.XMLDesc()
                if f"<mac address='{mac}'/>" in xml:
                    return (domain.UUIDString(),
                            domain_xml.read(xml).project_id)
    return None


def main() -> None:
    address, url = sys.argv[1:]
    _Server(address, url, os.environ[SECRET].encode()).serve_forever()


if __name__ == '__main__':
    main()
