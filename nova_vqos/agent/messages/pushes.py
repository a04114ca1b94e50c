# SPDX-License-Identifier: Apache-2.0
"""Policy pushes: what an agent holds, and how servers follow them."""

from collections.abc import Mapping
import dataclasses

from nova_vqos import policy_override


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedFlavor:
    """The last push of a server's flavor.

    :ivar generation: see :class:`nova_vqos.policy_override.Override`, as the
        next ones
    """

    generation: int
    name: str
    vcpus: int
    units: int | None
    quantum_class: str
    dd_billing: str
    guarantee: str
    pushed_at: str


@dataclasses.dataclass(frozen=True, slots=True)
class NotFollowing:
    """A server that does not follow the push of its flavor."""

    server_uuid: str
    flavor: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How the servers of a host follow what was pushed.

    :ivar following: how many do
    :ivar other_units: how many of these were booted with other units
    :ivar refused: how many cannot
    :ivar unmatched: how many have a flavor that was made anew
    :ivar not_following: of the latter two, a hundred at most
    :ivar keep_reservation: how many keep one until they stop, whose flavor
        asks for none any more
    """

    following: int
    other_units: int
    refused: int
    unmatched: int
    not_following: tuple[NotFollowing, ...]
    keep_reservation: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushResult(Following):
    """The answer to ``push_flavors`` and ``push_policies``.

    :ivar generation: the largest that the host has
    :ivar state: applied (some of the push was new), same (it was known) or
        older (newer pushes hold)
    :ivar stored: whether the push outlives the agent
    :ivar problem: why it does not
    :ivar servers: how many have another policy now
    """

    host: str
    generation: int
    state: str
    stored: bool
    problem: str
    servers: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushState(Following):
    """The pushes that a host holds, and how servers follow them.

    :ivar generation: the largest; 0: there was no push
    :ivar full_generation: of the newest full push; 0: there was none
    :ivar requires_signature: whether the host takes signed pushes alone
    :ivar pushed_at: '' where there was no push
    :ivar problem: why the pushes do not outlive the agent, or the last one was
        refused
    """

    host: str
    generation: int
    full_generation: int = 0
    requires_signature: bool = False
    pushed_at: str
    problem: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(PushState):
    """The answer to ``get_pushed``.

    :ivar flavors: by id
    """

    flavors: Mapping[str, policy_override.Override]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedDigest(PushState):
    """The answer to ``get_pushed_digest``.

    :ivar digest: of the flavors, see
        :func:`nova_vqos.policy_override.digest_of`
    """

    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class PushesDifference:
    """The answer to ``compare_pushes``.

    :ivar pushes: for :func:`nova_vqos.policy_push.from_list`; None: both
        agents hold the same
    """

    host: str
    pushes: object


@dataclasses.dataclass(frozen=True, slots=True)
class OverridesDifference:
    """The answer to ``compare_pushed``.

    :ivar flavors: for :func:`nova_vqos.policy_override.from_dict`; None: both
        agents hold the same
    """

    host: str
    flavors: object
