# SPDX-License-Identifier: Apache-2.0
"""What nova-compute asks an agent before a server moves."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Lifted:
    """The answer to ``lift_limits``.

    :ivar lifted: whether nothing limits the server's I/O
    :ivar is_pending: whether that is under way
    """

    lifted: bool
    is_pending: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to ``check_server``.

    :ivar reason: why the host cannot take it; '': it can
    """

    reason: str
