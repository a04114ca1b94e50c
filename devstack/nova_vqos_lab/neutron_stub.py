# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Neutron, and no more: every list it is asked for is empty.

Nova asks Neutron for ports, networks and extensions even for servers without
a network, and answers 500 without a listener. The lab's servers have no
network, so that empty lists are the truth here, and that no quota limits
them. Anything but reading is refused with 501.
"""

from collections.abc import Callable, Iterable
import json


def application(environ: dict, start_response: Callable) -> Iterable[bytes]:
    """The WSGI application: ``GET /v2.0/ports`` gives ``{"ports": []}``.

    And ``GET /v2.0/quotas/PROJECT`` gives ``{"quota": {}}``.
    """
    if environ['REQUEST_METHOD'] not in ('GET', 'HEAD'):
        status, answer = '501 Not Implemented', {
            'NeutronError': 'this is a stand-in that only lists nothing'}
    else:
        parts = environ['PATH_INFO'].strip('/').split('/')
        status = '200 OK'
        answer = ({'quota': {}} if parts[1:2] == ['quotas']
                  else {parts[1].replace('-', '_'): []} if len(parts) > 1
                  else {'versions': [{'id': 'v2.0', 'status': 'CURRENT'}]})
    body = json.dumps(answer).encode()
    start_response(status, [('Content-Type', 'application/json'),
                            ('Content-Length', str(len(body)))])
    return [body]
