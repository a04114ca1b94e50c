# SPDX-License-Identifier: Apache-2.0
"""A profile as a document: written, read, and checked.

``nova-vqos-calibrate`` writes it; the compute driver, the agent and libvirt's
hook read it. It is JSON, a subset of YAML: libyaml's parser ends the process
at a deeply nested document, and the import of a YAML parser takes a third of
the hook's time.
"""

import json
import math

from nova_vqos import files
from nova_vqos.profile import cpu
from nova_vqos.profile import model

_MAX_CLASSES = 64


def load(path: str) -> model.Profile:
    """Read a profile.

    :raises files.FileMissing: when there is none
    :raises files.FileUnsafe: when others than root and the reader may write it
    :raises files.FileInvalid: when it is no profile, or of another schema
    """
    try:
        content = files.read(path)
    except files.FileMissing as error:
        raise files.FileMissing(
            f'{error}: run nova-vqos-calibrate cpu') from error
    try:
        return loads(content)
    except files.FileInvalid as error:
        raise files.FileInvalid(f'{path}: {error}') from error


def loads(content: str | bytes) -> model.Profile:
    """Read a profile from its text.

    :raises files.FileInvalid: when it is no profile, or of another schema
    """
    try:
        return _from_document(files.Fields(json.loads(content), ''))
    except (ValueError, RecursionError) as error:
        raise files.FileInvalid(
            f'not the JSON of a profile: {error}') from error
    except OverflowError as error:
        raise files.FileInvalid(
            f'a number is too large: {error}') from error


def dumps(profile: model.Profile) -> str:
    """The text of a profile."""
    import re
    # The id comes last: a truncated text is invalid, wherever it was cut.
    text = json.dumps(
        profile.document() | {'id': profile.id}, indent=2) + '\n'
    # One line for each list: a reader has no use for thousands of samples.
    return re.sub(r'\[\n[-+.,\deE\s]+\]',
                  lambda found: ' '.join(found[0].split()), text)


def store(profile: model.Profile, path: str) -> None:
    """Write a profile, whole or not at all.

    The new file is read back before it replaces the old one.

    :raises OSError: when it cannot be written; the old file then stays
    :raises files.FileInvalid: when the new file does not have that profile;
        the old file then stays
    """
    def check(written: str) -> None:
        try:
            found = loads(files.read(written))
        except files.FileError as error:
            raise files.FileInvalid(
                f'{path} was not written, the new file cannot be used: '
                f'{error}') from error
        if found.id != profile.id:
            raise files.FileInvalid(
                f'{path} was not written, the new file reads as another '
                f'profile: {found.id} for {profile.id}')

    files.write(dumps(profile), path, check=check)


def _from_document(fields: files.Fields) -> model.Profile:
    schema = fields.number('schema', -math.inf, math.inf)
    if schema != model.SCHEMA:
        raise fields.error(
            'schema', f'{model.SCHEMA}: calibrate with this version')
    measured_in = fields.text('measured_in')
    if measured_in not in ('host', 'guest'):
        raise fields.error('measured_in', 'host or guest')
    reference = cpu.reference_of(fields.child('reference'))
    profile = model.Profile(
        created_at=fields.text('created_at'),
        host=fields.text('host'),
        reference=reference,
        measured_in=measured_in,
        fingerprint=fields.texts('fingerprint'),
        cpu_classes=tuple(
            cpu.class_of(child, reference)
            for child in fields.children('cpu_classes', _MAX_CLASSES)),
        is_reference=fields.truth('is_reference'),
        provenance=(fields.texts('provenance')
                    if fields.has('provenance') else {}),
        io=fields.mapping('io'),
        quantum=fields.mapping('quantum'))
    if len(profile.pcpus) != sum(len(c.pcpus) for c in profile.cpu_classes):
        raise files.FileInvalid('a pCPU is in several of cpu_classes')
    if fields.text('id') != profile.id:
        raise fields.error('id', f'{profile.id}: the content was changed or '
                           'cut off since it was measured')
    return profile
