# SPDX-License-Identifier: Apache-2.0
"""What nova-compute asks an agent before a server moves."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Lifted:
    """The answer to ``lift_limits``."""

    lifted: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to ``check_server``.

    :ivar reason: why the host cannot take it; '': it can
    """

    reason: str
