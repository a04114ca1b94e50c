# SPDX-License-Identifier: Apache-2.0
"""What a cap needs of a profile: the speed of each pCPU, and the tick.

Most of a profile are samples: to read and check them would take libvirt's hook
longer than all else that it does. So :func:`load` keeps its result in a small
file beside the profile, as Python keeps bytecode beside a source: it is used
as long as the profile is the same file, unchanged; it may be removed at any
time; and where it cannot be written, each caller reads the whole profile. The
profile remains the only source.
"""

from collections.abc import Iterable, Mapping

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos import light_typing

if light_typing.TYPE_CHECKING:
    from nova_vqos import work

#: Of the file beside a profile, behind the profile's name.
SUFFIX = '.coefficients'
# First line of that file. Another one with each change of its form, or of what
# nova_vqos.profile.document accepts.
_FORM = 'nova-vqos coefficients 1'
# Last line: without it the file was cut off, as by a crash of the host.
_END = 'end'


class ClassCoefficients(light_typing.NamedTuple):
    """The coefficients of equal pCPUs while all pCPUs are busy.

    :ivar mean: of all kinds of work
    :ivar kinds: of each kind of work, by its name
    """

    pcpus: frozenset[int]
    mean: float
    kinds: Mapping[str, float]

    def of(self, mix: 'work.Mix | None') -> float:
        """See :meth:`Coefficients.of`."""
        return self.mean if mix is None else mix.coefficient(self.kinds)


class Coefficients(light_typing.NamedTuple):
    """The coefficients of a host's pCPUs.

    A server must get its speed on a full host too: they are those of busy
    pCPUs.

    :ivar tick_us: length of the scheduler's tick
    """

    classes: tuple[ClassCoefficients, ...]
    tick_us: int

    @property
    def pcpus(self) -> frozenset[int]:
        """The measured pCPUs."""
        return frozenset[int]().union(*(c.pcpus for c in self.classes))

    def of(self, pcpu: int, mix: 'work.Mix | None' = None) -> float:
        """That of a pCPU.

        :param mix: of kinds of work; None: the mean of all kinds
        :raises files.FileInvalid: when the pCPU was not measured
        :raises nova_vqos.work.KindMissing: when a kind was not
        """
        for found in self.classes:
            if pcpu in found.pcpus:
                return found.of(mix)
        raise files.FileInvalid(
            f'pCPU {pcpu} is not in the profile, which has '
            f'{cpuset.format_pcpus(self.pcpus)}: calibrate it')

    def slowest(self, pcpus: Iterable[int],
                mix: 'work.Mix | None' = None) -> float:
        """The least among some pCPUs.

        :param mix: of kinds of work; None: the mean of all kinds
        :raises files.FileInvalid: when one was not measured, or none is given
        :raises nova_vqos.work.KindMissing: when a kind was not measured
        """
        return min(self._all(pcpus, mix))

    def fastest(self, pcpus: Iterable[int]) -> float:
        """The greatest among some pCPUs.

        :raises files.FileInvalid: when one was not measured, or none is given
        """
        return max(self._all(pcpus))

    def _all(self, pcpus: Iterable[int],
             mix: 'work.Mix | None' = None) -> list[float]:
        # By class, of which a host has few: an agent asks this of each server
        # again and again, and a host has hundreds of pCPUs.
        left, found = frozenset(pcpus), []
        for one in self.classes:
            if not left.isdisjoint(one.pcpus):
                found.append(one.of(mix))
                left -= one.pcpus
        if left:
            found.append(self.of(min(left), mix))
        if not found:
            raise files.FileInvalid('no pCPU is left for servers to share')
        return found


def load(profile_path: str) -> Coefficients:
    """Those of a profile.

    :raises files.FileError: see :func:`nova_vqos.profile.document.load`
    """
    profile = files.identity(profile_path)
    path = profile_path + SUFFIX
    if profile is not None:
        try:
            return _parse(files.read(path).decode(), profile)
        except (files.FileError, ValueError):
            pass
    from nova_vqos.profile import document
    found = document.load(profile_path).coefficients
    if profile is not None and profile == files.identity(profile_path):
        _keep(path, found, profile)
    return found


def _keep(path: str, found: Coefficients, profile: tuple[int, ...]) -> None:
    """Write them beside the profile, if that is possible."""
    text = _format(found, profile)
    try:
        # NOTE: the name of a kind of work may be any text.
        if _parse(text, profile) == found:
            files.write(text, path, durable=False)
    except (OSError, ValueError):
        pass


def _format(found: Coefficients, profile: tuple[int, ...]) -> str:
    """
    :param profile: identity of the profile
    """
    lines = [(_FORM,), map(str, profile), (str(found.tick_us),)]
    lines += [(cpuset.format_pcpus(one.pcpus), repr(one.mean), *(
        f'{value!r} {kind}' for kind, value in one.kinds.items()))
        for one in found.classes]
    return ''.join('\t'.join(line) + '\n' for line in (*lines, (_END,)))


def _parse(text: str, profile: tuple[int, ...]) -> Coefficients:
    """The inverse of :func:`_format`.

    :raises ValueError: when it is of another profile, or invalid
    """
    form, identity, tick_us, *lines, end = text.splitlines()
    if (form != _FORM or identity != '\t'.join(map(str, profile))
            or end != _END):
        raise ValueError('of another profile, of another form, or cut off')
    classes = []
    for line in lines:
        pcpus, mean, *kinds = line.split('\t')
        values = (kind.split(' ', 1) for kind in kinds)
        classes.append(ClassCoefficients(
            cpuset.parse_pcpus(pcpus), float(mean),
            {kind: float(value) for value, kind in values}))
    return Coefficients(tuple(classes), int(tick_us))
