# SPDX-License-Identifier: Apache-2.0
"""A kind of work that is added to a profile which exists.

Only the new kind is measured, and beside it one benchmark that the profile
has: the anchor. Where that is as fast as the profile says, the host is in the
state that it was calibrated in, and the new score stands beside the old ones.
Else the kind is refused. Nothing is corrected by the anchor: kinds of work do
not slow down alike, and one benchmark scatters from one calibration to the
next by as much as there would be to correct.
"""

from collections.abc import Iterable, Mapping
import contextlib
import dataclasses
import typing as ty

from nova_vqos import cpuset
from nova_vqos import utc
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import runner
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import drift
from nova_vqos.calibration.cpu import measure
from nova_vqos.calibration.cpu import reference
from nova_vqos.calibration.cpu import steps
from nova_vqos.profile import cpu
from nova_vqos.profile import model

#: As of a check whether a profile still holds.
TOLERANCE = 0.03

_States = Mapping[tuple[str, frozenset[int]], cpu.Score]


@dataclasses.dataclass(frozen=True, slots=True)
class Addition:
    """A kind of work to add.

    :ivar held: the profile
    :ivar member: the new benchmark, with its weight
    :ivar known: as it is in the reference; None: this host is the reference,
        and defines it
    :ivar order: of the benchmarks in the profile to be, by name
    """

    held: model.Profile
    member: benchmark.Member
    known: cpu.Benchmark | None
    order: tuple[str, ...]

    @property
    def changes_mean(self) -> bool:
        """Whether the coefficient of all kinds becomes another one."""
        return bool(self.member.weight) or any(
            known.weight for known in self.held.reference.benchmarks
            if known.name == self.member.name)


class Added(ty.NamedTuple):
    """A profile with a new kind of work.

    :ivar anchors: how the benchmark that was measured beside it has drifted,
        by class of equal pCPUs
    """

    profile: model.Profile
    anchors: tuple[drift.Finding, ...]


def plan(held: model.Profile, name: str, *,
         commands: Mapping[str, benchmark.Benchmark],
         against: reference.Yardstick | None, weight: float | None,
         replace: bool) -> Addition:
    """See whether a kind of work can be added to a profile.

    :param commands: the operator's own benchmarks, by name
    :param against: a reference that has the kind; None: this host is it
    :param weight: in the coefficient; None: of the kind that is replaced, else
        0
    :raises CalibrationError: when it cannot
    """
    had = held.reference.has(name)
    if had and not replace:
        raise CalibrationError(
            f'the profile has a kind of work {name!r}: give the new one '
            'another name, since hosts that have the old one would accept '
            'the flavors of the new one, or give --replace')
    if not had and len(held.reference.benchmarks) >= cpu.MAX_BENCHMARKS:
        raise CalibrationError(
            f'the profile has {len(held.reference.benchmarks)} benchmarks, '
            f'there may be {cpu.MAX_BENCHMARKS}')
    names = [known.name for known in held.reference.benchmarks]
    if against is None:
        return _plan_own(held, benchmark.Member(
            name, benchmark.load(name, commands),
            weight if weight is not None
            else held.reference.benchmark(name).weight if had else 0.0),
            (*names, *([] if had else [name])))
    known = _find_known(held, name, against)
    if weight is not None:
        raise CalibrationError(
            '--weight is for the reference, which says that the weight of '
            f'{name} is {known.weight:g}')
    return Addition(
        held, benchmark.Member(name, benchmark.load_as(known, commands),
                               known.weight),
        known, tuple(one.name for one in against.reference.benchmarks
                     if one.name in {*names, name}))


def _plan_own(held: model.Profile, member: benchmark.Member,
              order: tuple[str, ...]) -> Addition:
    if not held.is_reference:
        raise CalibrationError(
            f'this host is not the reference, {held.reference.name}: add the '
            'kind there first, then give its profile by --against')
    if not member.weight and not any(
            known.weight for known in held.reference.benchmarks
            if known.name != member.name):
        raise CalibrationError(
            f'{member.name} is the only benchmark with a weight above 0, it '
            'cannot have 0: there would be no coefficient')
    return Addition(held, member, None, order)


def _find_known(held: model.Profile, name: str,
                against: reference.Yardstick) -> cpu.Benchmark:
    """
    :raises CalibrationError: when the reference is not that of the profile,
        or lacks the kind
    """
    if held.is_reference:
        raise CalibrationError(
            f'this host is the reference, {held.reference.name}, and defines '
            'its kinds of work itself: do without --against')
    if not against.reference.has(name):
        raise CalibrationError(
            f'the reference has no kind of work {name!r}, it has '
            f'{", ".join(one.name for one in against.reference.benchmarks)}: '
            'add it on the reference host first')
    others = held.reference._replace(benchmarks=tuple(
        one for one in held.reference.benchmarks if one.name != name))
    theirs = against.reference._replace(benchmarks=tuple(
        one for one in against.reference.benchmarks
        if others.has(one.name)))
    lacking = [one.name for one in others.benchmarks
               if not theirs.has(one.name)]
    if (lacking or against.measured_in != held.measured_in
            or not reference.are_same(others, theirs)):
        raise CalibrationError(
            f'the profile was measured in the {held.measured_in} against '
            f'{held.reference.name} of {held.reference.created_at}, and the '
            f'given reference is {against.reference.name} of '
            f'{against.reference.created_at}, measured in the '
            f'{against.measured_in}, '
            + (f'without {", ".join(lacking)}' if lacking
               else 'or has other scores of the same benchmarks')
            + ': it must be the same one, with the new kind')
    return against.reference.benchmark(name)


def choose_anchor(addition: Addition, wanted: str | None,
                  commands: Mapping[str, benchmark.Benchmark],
                  ) -> benchmark.Member:
    """The benchmark that is measured beside the new one.

    :param wanted: its name; None: of those that count and are installed, the
        one that the profile is most certain of
    :param commands: the operator's own, by name
    :raises CalibrationError: when there is none
    """
    old = addition.held.reference
    counting = [known for known in old.benchmarks
                if known.weight and known.name != addition.member.name]
    if wanted is None:
        installed = {*benchmark.names(), *commands}
        counting = [known for known in counting if known.name in installed]
    else:
        counting = [known for known in counting if known.name == wanted]
    if not counting:
        raise CalibrationError(
            'none of the benchmarks with a weight above 0 can be measured '
            'beside the new one'
            + (f': {wanted!r} is none of them' if wanted else
               ', name one, and its command, by --anchor'))
    anchor = min(counting, key=lambda known: max(
        one.busy.score(known.name).interval_width
        for one in addition.held.cpu_classes))
    # As certain as one that counts, whatever weight the new one has.
    return benchmark.Member(
        anchor.name, benchmark.load_as(anchor, commands), 1.0)


def check_output(member: benchmark.Member) -> None:
    """See that a program does the same each time.

    :raises CalibrationError: when it fails, or its output differs
    """
    with contextlib.closing(
            runner.NativeRunner(member.benchmark)) as native:
        if native.output_sha256(1) != native.output_sha256(1):
            raise CalibrationError(
                f'{member.benchmark.program} wrote different outputs when it '
                'ran twice for one event. Rounds must be the same work: let '
                'it use a fixed seed and fixed data. If it writes times, '
                'give --output-differs')


def yardstick(addition: Addition,
              anchor: benchmark.Member) -> reference.Yardstick:
    """What the two benchmarks are measured against."""
    old = addition.held.reference
    known = (() if addition.known is None else (addition.known,))
    return reference.Yardstick(
        old._replace(benchmarks=(old.benchmark(anchor.name), *known)),
        addition.held.measured_in)


def add(addition: Addition, anchor: benchmark.Member,
        calibration: measure.Calibration, *, tolerance: float,
        widest_interval: float) -> Added:
    """Measure the kind and its anchor, and make a profile with it.

    :param anchor: see :func:`choose_anchor`
    :param calibration: of the new benchmark and the anchor, against
        :func:`yardstick`
    :param tolerance: of the anchor's drift, beyond what chance leaves open
    :param widest_interval: of the kind, busy, without the reference's part
    :raises measure.UnfitRoundsError: when the host is not in the state that
        it was calibrated in, or the kind scatters too much
    :raises CalibrationError: when it cannot be measured
    """
    taken = calibration.measure_each(also_alone=True)
    anchors = _judge_anchor(addition.held, anchor, taken, tolerance,
                            calibration)
    _check_certain(addition, taken, widest_interval)
    known = addition.known or _define(addition, taken)
    scores = {
        (state, one.pcpus): measure.coefficient(
            taken.estimates[known.name, state, one.pcpus], known,
            0.0 if addition.known is None else known.half_width)
        for one in addition.held.cpu_classes
        for state in (steps.ALONE, steps.BUSY)}
    return Added(_with_kind(addition, known, scores, _describe(
        addition, anchors, calibration.provenance)), tuple(anchors))


def _judge_anchor(held: model.Profile, anchor: benchmark.Member,
                  taken: measure.Taken, tolerance: float,
                  calibration: measure.Calibration) -> list[drift.Finding]:
    """
    :raises UnfitRoundsError: when the host is not as fast as the profile says,
        or that remains unknown
    """
    known = held.reference.benchmark(anchor.name)
    found = drift.judge_kind(
        held, anchor.name,
        {one.pcpus: measure.coefficient(
            taken.estimates[anchor.name, steps.BUSY, one.pcpus], known, 0.0)
         for one in held.cpu_classes}, tolerance,
        beside_guests=calibration.guests_at_work)
    for one in found:
        seen = (f'by {anchor.name}, pCPUs {cpuset.format_pcpus(one.pcpus)} '
                f'are off from the profile by {one.drift:+.1%}, of which '
                f'chance may be {one.open_by:.1%}')
        if one.verdict == drift.STALE:
            raise measure.UnfitRoundsError(
                f'{seen}. The host is not as it was calibrated: a new kind '
                'cannot stand beside the old ones. Find the cause, or '
                'calibrate it again with the command cpu')
        if one.verdict == drift.UNKNOWN:
            raise measure.UnfitRoundsError(
                f'{seen}, and {tolerance:.1%} is tolerated: measure on a '
                'quieter host, with more --rounds and --max-seconds, or with '
                'another --anchor')
    return found


def _check_certain(addition: Addition, taken: measure.Taken,
                   widest_interval: float) -> None:
    """
    :raises UnfitRoundsError: when the kind scatters too much
    """
    for one in addition.held.cpu_classes:
        found = taken.estimates[addition.member.name, steps.BUSY, one.pcpus]
        if found.width > widest_interval:
            raise measure.UnfitRoundsError(
                f'the interval of {addition.member.name} on pCPUs '
                f'{cpuset.format_pcpus(one.pcpus)} is {found.width:.1%} wide, '
                f'more than {widest_interval:.1%}: {found.cause}. Each event '
                'must be the same work: if it is, measure on a quieter host, '
                'with more --rounds and --max-seconds, or allow a wider one '
                'by --widest-interval')


def _define(addition: Addition, taken: measure.Taken) -> cpu.Benchmark:
    """The kind in the reference: by the busy first class of pCPUs."""
    name = addition.member.name
    return measure.defined(
        addition.member,
        taken.estimates[name, steps.BUSY,
                        addition.held.cpu_classes[0].pcpus],
        taken.round_events[name])


def _with_kind(addition: Addition, known: cpu.Benchmark, scores: _States,
               note: str) -> model.Profile:
    """The profile with the kind, and all else as it was."""
    held = addition.held
    benchmarks = {one.name: one for one in held.reference.benchmarks}
    benchmarks[known.name] = known
    new = held.reference._replace(benchmarks=tuple(
        benchmarks[name] for name in addition.order))

    def extended(measured: cpu.Measurement,
                 score: cpu.Score) -> cpu.Measurement:
        by_name = {one.benchmark: one for one in measured.scores}
        by_name[known.name] = score
        found = tuple(by_name[name] for name in addition.order)
        # Not computed anew without need: not a bit of it shall change.
        return (combine.measurement(found, new) if addition.changes_mean
                else measured._replace(scores=found))

    return held._replace(
        reference=new,
        cpu_classes=tuple(
            one._replace(alone=extended(one.alone,
                                        scores[steps.ALONE, one.pcpus]),
                         busy=extended(one.busy,
                                       scores[steps.BUSY, one.pcpus]))
            for one in held.cpu_classes),
        provenance={**held.provenance, f'kind_{known.name}': note})


def _describe(addition: Addition, anchors: Iterable[drift.Finding],
              provenance: Mapping[str, str]) -> str:
    """Of at most 256 characters, as the profile takes."""
    worst = max(anchors, key=lambda one: abs(one.drift))
    return (f'{utc.text()}, '
            f'program {addition.member.benchmark.program_sha256}, '
            f'{worst.kind} {worst.drift:+.1%} (open {worst.open_by:.1%}), '
            + ', '.join(f'{key} {provenance[key]}' for key in (
                'busy_before', 'busy_steal', 'busy_throttled')))
