# SPDX-License-Identifier: Apache-2.0
"""Cold migrations and resizes to this host, and whether it can take them.

Nova asks no driver before it powers such a server off. But it claims the move
on the destination first, and each claim has the driver report. So the driver
of the destination decides then, under its lock, and holds the room of a server
that it accepts. The driver of the source asks for that decision before it
powers the server off: by the agent of the destination, which reads it from the
driver's file.

NOTE: which moves there are is in Nova's database alone. So it survives each
restart, and a move ends when Nova says so, with its claim in Placement.
"""

import typing as ty

from nova.compute import task_states
from oslo_log import log as logging

from nova import context as nova_context
from nova import exception
from nova import objects
from nova_vqos import policy as policies
from nova_vqos.virt import admission

LOG = logging.getLogger(__name__)

_COLD = ('migration', 'resize')
# The server is still to come. In the last of them it does so in any case.
_POWERED_OFF = 'post-migrating'
_COMING = ('pre-migrating', 'migrating', _POWERED_OFF)
# It has come, and may still return.
_HERE = ('finished', 'confirming', 'reverting')
# NOTE: where the source died Nova leaves a migration open for ever, but its
# server has none of these any more.
_COMING_TASKS = (task_states.RESIZE_PREP, task_states.RESIZE_MIGRATING,
                 task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH)

# The status of migrations after which no server comes any more.
_OVER = ('cancelled', 'completed', 'confirmed', 'done', 'error', 'failed',
         'finished', 'reverted')


class ColdMove(ty.NamedTuple):
    """A cold migration or a resize to this host that is not over.

    :ivar is_coming: whether the server is still to come
    :ivar is_powered_off: whether it does so in any case
    :ivar policy: that the server has here; None: stock Nova's business
    :ivar is_pinned: whether it has a NUMA topology here
    :ivar former: what it was on this host, where a revert brings it back;
        None: that is another host, where its domain still is
    :ivar problem: why there is no policy; '': there is, or it asks nothing
    :ivar source: host that it comes from; '': this one
    """

    migration_id: int
    uuid: str
    is_coming: bool
    is_powered_off: bool
    policy: policies.ServerPolicy | None
    is_pinned: bool = False
    former: policies.ServerPolicy | None = None
    problem: str = ''
    source: str = ''


class Decision(ty.NamedTuple):
    """Whether a host can take a server that is to come.

    :ivar reason: why it cannot; '': it can
    :ivar source: see :class:`ColdMove`
    """

    uuid: str
    reason: str
    source: str


class ColdMoves:
    """Decides on cold moves to a host, each once."""

    def __init__(self, tracker):
        """
        :param tracker: the CoreTypeTracker of the host
        """
        self._tracker = tracker
        # By id of the migration, of servers that are still to come, in the
        # order in which they were claimed.
        self._decisions = {}

    @property
    def reasons(self):
        """{UUID of a server that is to come: why it cannot; ''}."""
        return {decision.uuid: decision.reason
                for decision in self._decisions.values()}

    @property
    def sources(self):
        """{UUID of a server that is to come from another host: that host}."""
        return {decision.uuid: decision.source
                for decision in self._decisions.values() if decision.source}

    def follow(self, node, report, admit):
        """Decide on new moves, and let go of those that are over.

        :param node: the host's name, as Nova's migrations have it
        :param report: :class:`nova_vqos.virt.host_state.HostReport`
        :param admit: admit(candidate, is_resize) holds its room, or raises
            :class:`nova_vqos.virt.admission.CannotServe`
        """
        moves = _to_node(nova_context.get_admin_context(), node)
        self._tracker.keep_formers({
            move.uuid: move.former for move in moves
            if move.former is not None and move.former.units is not None})
        coming = {move.migration_id: move for move in moves if move.is_coming}
        self._decisions = {number: decision for number, decision
                           in self._decisions.items() if number in coming}
        for number, move in sorted(coming.items()):
            if move.is_powered_off:
                # NOTE: it may have been refused: where the agent could not be
                # asked it comes all the same.
                self._tracker.hold(_candidate(move, report))
            if number not in self._decisions:
                self._decisions[number] = Decision(
                    move.uuid, _refusal(move, report, admit), move.source)


def is_moving(uuid):
    """Whether a server has a migration that is not over."""
    context = nova_context.get_admin_context()
    if all(migration.status in _OVER for migration
           in objects.MigrationList.get_by_filters(
               context, {'instance_uuid': uuid})):
        return False
    try:
        # NOTE: else it is open for ever, as its source died.
        return objects.Instance.get_by_uuid(
            context, uuid, expected_attrs=[]).task_state is not None
    except exception.InstanceNotFound:
        return False


def _candidate(move, report):
    return admission.Candidate(
        move.uuid, move.policy or policies.ServerPolicy(1), report.pcpus,
        move.is_pinned)


def _refusal(move, report, admit):
    """Why the host cannot take a server; '': it can, and holds its room."""
    if move.policy is None or move.is_powered_off:
        return move.problem
    try:
        admit(_candidate(move, report), move.former is not None)
    except admission.CannotServe as error:
        return str(error)
    return ''


def _to_node(context, node):
    """The cold moves to a host that are not over, from Nova's database."""
    found = []
    for migration in objects.MigrationList.get_by_filters(
            context, {'node': node, 'status': [*_COMING, *_HERE]}):
        if (migration.migration_type not in _COLD
                or migration.dest_node != node):
            continue
        try:
            move = _read(context, migration)
        except exception.InstanceNotFound:
            # It was deleted on its way.
            continue
        if move is not None:
            found.append(move)
    return found


def _read(context, migration):
    """One move; None: its server has been moved again since."""
    instance = objects.Instance.get_by_uuid(
        context, migration.instance_uuid,
        expected_attrs=['flavor', 'migration_context'])
    context_of_move = instance.migration_context
    if (context_of_move is None
            or context_of_move.migration_id != migration.id):
        return None
    # Nova keeps both flavors until the move was confirmed or reverted.
    flavor = instance.new_flavor or instance.flavor
    topology = context_of_move.new_numa_topology
    is_coming = (migration.status in _COMING
                 and instance.task_state in _COMING_TASKS)
    move = ColdMove(
        migration.id, instance.uuid, is_coming,
        is_coming and migration.status == _POWERED_OFF, None,
        topology is not None)
    if migration.source_node != migration.dest_node:
        move = move._replace(source=migration.source_compute)
    else:
        move = move._replace(
            former=_former(instance.old_flavor or instance.flavor))
    try:
        return move._replace(policy=policies.parse(
            flavor.extra_specs, flavor.vcpus, topology))
    except policies.PolicyError as error:
        return move._replace(problem=str(error))


def _former(flavor):
    try:
        return policies.parse(flavor.extra_specs, flavor.vcpus)
    except policies.PolicyError:
        # It has no units that could be counted.
        return None
