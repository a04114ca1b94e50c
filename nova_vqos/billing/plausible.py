# SPDX-License-Identifier: Apache-2.0
"""What a server can have used, by physics: time times pCPUs. Pure.

A QEMU that was taken over may claim any number for its own server: a bill by
that would outlast the server, and be too large for the ledger.
"""

from nova_vqos.billing import meter

# Costs of I/O are of a calibration, and counters of several moments.
_MARGIN = 10
# Between the readings of two counters.
_SLACK_S = 1.0


def objection(bill: meter.Bill, longest_s: float, pcpus: int) -> str:
    """Why a bill cannot be true; '': it can.

    :param longest_s: in which all of it was used
    :param pcpus: of the host
    """
    most_ns = int(_MARGIN * pcpus * (longest_s + _SLACK_S) * 1e9)
    for name, used_ns in bill.used_ns.items():
        # NOTE: with each bill, and fractions compare slowly.
        if used_ns.numerator > most_ns * used_ns.denominator:
            return (f'{name} used {float(used_ns) / 1e9:.0f} s of CPU time in '
                    f'{longest_s:.0f} s on {pcpus} pCPUs')
    return ''
