# SPDX-License-Identifier: Apache-2.0
"""The validity of a profile on its host.

By the host's fingerprint, and by the last verification, which
``nova-vqos-calibrate verify --record`` writes and the compute driver reads. A
host with a stale profile takes no new servers with units.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import json

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos import utc
from nova_vqos.profile import cpu
from nova_vqos.profile import model

SCHEMA = 1
#: As far as the profile goes.
OK = 'ok'
#: More than the intervals leave open, but no more than is tolerated.
DRIFTED = 'drifted'
#: The host is another one than was measured.
STALE = 'stale'
#: Chance leaves more open than is tolerated: measure again, or for longer.
UNKNOWN = 'unknown'

_MOST_CLASSES = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """The drift of a class of equal pCPUs, as it is recorded.

    :ivar pcpus: in libvirt's notation
    :ivar drift: of the coefficient, relative to the profile's
    :ivar kind: of work; '': all that count, together
    :ivar verified_at: ISO 8601, UTC
    """

    pcpus: str
    drift: float
    verdict: str
    kind: str
    verified_at: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """The result of the last verification of a profile.

    :ivar verdict: of the whole profile
    :ivar verified_at: when the pCPUs were, ISO 8601, UTC
    :ivar cpu_verdict: by the benchmarks that count
    :ivar findings: the same by class of equal pCPUs
    :ivar kinds: by kind of work, of those that are verified by themselves, and
        class; each from the last time that it was measured
    """

    verdict: str
    verified_at: str
    cpu_verdict: str
    findings: tuple[Drift, ...]
    kinds: tuple[Drift, ...] = ()

    @property
    def drifts(self) -> Mapping[str, float]:
        """Of the coefficient, by the pCPUs of each class."""
        return {one.pcpus: one.drift for one in self.findings}


def worst(cpu_verdict: str, kinds: Iterable[str]) -> str:
    """The verdict on a profile.

    A kind of work that is unknown decides nothing: it scatters more than the
    others, and is not measured where guests are at work.

    :param cpu_verdict: by the benchmarks that count
    :param kinds: on kinds of work that are verified by themselves
    """
    verdicts = {cpu_verdict, *kinds} - {UNKNOWN}
    if cpu_verdict == UNKNOWN and STALE not in verdicts:
        return UNKNOWN
    return next(one for one in (STALE, DRIFTED, OK) if one in verdicts)


def store(path: str, profile_id: str, verdict: str,
          findings: Sequence[Mapping[str, str]],
          kinds: Sequence[Mapping[str, str]] | None = None) -> None:
    """Write the result of a verification.

    What is unknown does not replace what was found to be stale of the same
    profile, and what was not measured replaces nothing.

    :param verdict: by the benchmarks that count
    :param findings: by class of equal pCPUs: pcpus and drift, as texts
    :param kinds: by kind of work and class: kind, pcpus, drift and verdict, as
        texts; None: they were not measured; none: they are not to be verified
    :raises OSError: when it cannot be written
    """
    before = load(path, profile_id)
    verified_at = utc.text()
    recorded = _merged(kinds, () if before is None else before.kinds,
                       verified_at)
    if (before is not None and verdict == UNKNOWN
            and before.cpu_verdict == STALE):
        verdict, verified_at = STALE, before.verified_at
        findings = [{'pcpus': one.pcpus, 'drift': f'{one.drift:+.1%}',
                     'verdict': one.verdict} for one in before.findings]
    # NOTE: an older version reads the same schema, and ignores what it does
    # not know: the verdict is that of the whole profile for it as well.
    files.write(json.dumps({
        'schema': SCHEMA, 'profile_id': profile_id,
        'verdict': worst(verdict, [one['verdict'] for one in recorded]),
        'verified_at': verified_at, 'cpu_verdict': verdict,
        'findings': list(findings),
        **({'kinds': recorded} if recorded else {})}, indent=2) + '\n', path)


def load(path: str, profile_id: str) -> Verification | None:
    """The result of the last verification of a profile.

    :returns: None where there is none, and where it cannot be read
    """
    try:
        fields = files.Fields(json.loads(files.read(path)), '')
        if (fields.number('schema', 0, 1e9) != SCHEMA
                or fields.text('profile_id') != profile_id):
            return None
        verdict = fields.text('verdict')
        verified_at = fields.text('verified_at')
        # An older version had that of the benchmarks that count alone.
        cpu_verdict = (fields.text('cpu_verdict')
                       if fields.has('cpu_verdict') else verdict)
        return Verification(
            verdict, verified_at, cpu_verdict, tuple(
                Drift(one.text('pcpus'), _share(one), one.text('verdict')
                      if one.has('verdict') else cpu_verdict, '', verified_at)
                for one in fields.children('findings', _MOST_CLASSES)),
            tuple(
                Drift(one.text('pcpus'), _share(one), one.text('verdict'),
                      one.text('kind'), one.text('verified_at'))
                for one in fields.children(
                    'kinds', _MOST_CLASSES * cpu.MAX_BENCHMARKS))
            if fields.has('kinds') else ())
    except (files.FileError, ValueError, OverflowError, RecursionError):
        return None


def why_stale(path: str, profile_id: str) -> str:
    """The reason why a profile is stale by its last verification.

    :returns: '' where it is not stale, and where there was no verification
    """
    found = load(path, profile_id)
    if found is None or found.verdict != STALE:
        return ''
    reasons = [f'verified at {one.verified_at}, {one.kind} on pCPUs '
               f'{one.pcpus} has drifted by {one.drift:+.1%}'
               for one in found.kinds if one.verdict == STALE]
    if found.cpu_verdict == STALE:
        drifts = ', '.join(f'pCPUs {one.pcpus} have drifted by '
                           f'{one.drift:+.1%}' for one in found.findings)
        reasons.insert(0, f'verified at {found.verified_at}, {drifts}')
    return f'{"; ".join(reasons)}: calibrate this host again'


def _merged(kinds: Sequence[Mapping[str, str]] | None,
            before: Iterable[Drift], verified_at: str
            ) -> list[dict[str, str]]:
    """What is recorded of kinds of work, with what was before."""
    old = {(one.kind, one.pcpus): {
        'kind': one.kind, 'pcpus': one.pcpus, 'drift': f'{one.drift:+.1%}',
        'verdict': one.verdict, 'verified_at': one.verified_at}
        for one in before}
    if kinds is None:
        return list(old.values())
    return [
        was if (was := old.get((one['kind'], one['pcpus'])))
        and was['verdict'] == STALE and one['verdict'] == UNKNOWN
        else {**one, 'verified_at': verified_at} for one in kinds]


def _share(fields: files.Fields) -> float:
    """
    :raises ValueError: when it is none
    """
    return float(fields.text('drift').rstrip('%')) / 100


def staleness(profile: model.Profile, fingerprint: Mapping[str, str], *,
              max_interval: float = 0.05) -> list[str]:
    """The reasons why a profile is stale on a host; empty where it is valid.

    :param fingerprint: of the host now
    :param max_interval: widest confidence interval of a coefficient,
        relative to it
    """
    reasons = [
        f'{key} was {was!r} and is {fingerprint.get(key, "unknown")!r}'
        for key, was in sorted(profile.fingerprint.items())
        if fingerprint.get(key, 'unknown') != was]
    reasons += [
        f'the interval of pCPUs {cpuset.format_pcpus(c.pcpus)} is '
        f'{c.busy.interval_width:.1%} wide, more than {max_interval:.1%}'
        for c in profile.cpu_classes
        if c.busy.interval_width > max_interval]
    return reasons
