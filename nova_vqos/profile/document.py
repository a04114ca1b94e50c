# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""A profile as a document: written, read, and checked.

A YAML document, written by ``nova-vqos-calibrate`` and read by the compute
driver, the agent and libvirt's hook. Of YAML it is the part that is JSON too:
libyaml's parser ends the process at a deeply nested document, and importing
any takes a third of the time that the hook has.
"""

import json
import math

from nova_vqos.profile import errors
from nova_vqos.profile import fields as checked
from nova_vqos.profile import files
from nova_vqos.profile import measurement
from nova_vqos.profile import model
from nova_vqos.profile import reference as references

DEFAULT_PATH = '/etc/nova-vqos/profile.yaml'

_MAX_CLASSES = 64


def load(path: str = DEFAULT_PATH) -> model.Profile:
    """Read a profile.

    :raises ProfileMissing: when there is none
    :raises ProfileUnsafe: when others than root and the reader may write it
    :raises ProfileInvalid: when it is no profile, or of another schema
    """
    content = files.read(path)
    try:
        return loads(content)
    except errors.ProfileInvalid as error:
        raise errors.ProfileInvalid(f'{path}: {error}') from error


def loads(content: str | bytes) -> model.Profile:
    """Read a profile from its text.

    :raises ProfileInvalid: when it is no profile, or of another schema
    """
    try:
        return _from_document(checked.Fields(json.loads(content), ''))
    except (ValueError, RecursionError) as error:
        raise errors.ProfileInvalid(
            f'not the JSON of a profile: {error}') from error
    except OverflowError as error:
        raise errors.ProfileInvalid(
            f'a number is too large: {error}') from error


def dumps(profile: model.Profile) -> str:
    """The text of a profile."""
    import re
    # The id comes last: a text that was cut off is none, wherever it was cut.
    text = json.dumps(
        profile.document() | {'id': profile.id}, indent=2) + '\n'
    # Thousands of samples are no reading matter: one line for each list.
    return re.sub(r'\[\n[-+.,\deE\s]+\]',
                  lambda found: ' '.join(found[0].split()), text)


def store(profile: model.Profile, path: str = DEFAULT_PATH) -> None:
    """Write a profile so that readers see the old one or the new, no part.

    It is read back before anybody else sees it.

    :raises OSError: when it cannot be written; the old one is then untouched
    :raises ProfileInvalid: when what was written is not that profile; the old
        one is untouched then, too
    """
    def check(written: str) -> None:
        try:
            found = loads(files.read(written))
        except errors.ProfileError as error:
            raise errors.ProfileInvalid(
                f'{path} was not written, what would have been there cannot '
                f'be used: {error}') from error
        if found.id != profile.id:
            raise errors.ProfileInvalid(
                f'{path} was not written, what would have been there reads as '
                f'another profile: {found.id} for {profile.id}')

    files.write(dumps(profile), path, check)


def _from_document(fields: checked.Fields) -> model.Profile:
    schema = fields.number('schema', -math.inf, math.inf)
    if schema != model.SCHEMA:
        raise fields.error(
            'schema', f'{model.SCHEMA}: calibrate with this version')
    measured_in = fields.text('measured_in')
    if measured_in not in ('host', 'guest'):
        raise fields.error('measured_in', 'host or guest')
    reference = references.reference_of(fields.child('reference'))
    profile = model.Profile(
        created_at=fields.text('created_at'),
        host=fields.text('host'),
        reference=reference,
        measured_in=measured_in,
        fingerprint=fields.texts('fingerprint'),
        cpu_classes=tuple(
            measurement.class_of(child, reference)
            for child in fields.children('cpu_classes', _MAX_CLASSES)),
        is_reference=fields.truth('is_reference'),
        provenance=(fields.texts('provenance')
                    if fields.has('provenance') else {}),
        io=fields.mapping('io'),
        quantum=fields.mapping('quantum'))
    if len(profile.pcpus) != sum(len(c.pcpus) for c in profile.cpu_classes):
        raise errors.ProfileInvalid('a pCPU is in several of cpu_classes')
    if fields.text('id') != profile.id:
        raise fields.error('id', f'{profile.id}: the content was changed or '
                           'cut off since it was measured')
    return profile
