# SPDX-License-Identifier: Apache-2.0
"""What the fields of a profile may be. No Sphinx is needed.

It is what the error says that a wrong one brings, so that page and program
cannot differ.
"""

import copy
import json
import re

from nova_vqos import files
from nova_vqos.profile import document as documents
from nova_vqos.profile import io
from nova_vqos.profile import quantum

# Of any other kind than the fields have; a field that may be true may not be
# a number.
_OF_WRONG_KIND = (True, 0)
# Of the same kind as the field that they take the place of.
_WRONG_VALUES = {str: 'nonsense', int: -1e300, float: -1e300}
_ERROR = re.compile(r'(\S+) is (.+?)(?:, it must be (.+))?$', re.S)


def at(document, path):
    """:returns: what is at a path; of lists the last one is looked at"""
    found = document
    for name in path.split('.') if path else ():
        found = found[name.removesuffix('[]')]
        if name.endswith('[]'):
            found = found[-1]
    return found


def limits(document, mapping):
    """What each field of a mapping may be, and whether it may be left out.

    :param document: a profile that is right, as it was read
    :param mapping: one within it
    """
    for name, value in list(mapping.items()):
        said = ''
        wrong = [*_OF_WRONG_KIND, *(
            [_WRONG_VALUES[type(value)]] if type(value) in _WRONG_VALUES
            else [])]
        for instead in wrong:
            mapping[name] = instead
            said = _must_be(_error_of(document), name) or said
        del mapping[name]
        optional = not _must_be(_error_of(document), name)
        mapping[name] = value
        if not said:
            raise ValueError(f'{name}: nothing is wrong for it')
        yield name, said, optional


def _error_of(document):
    """What is wrong with a document, but for its id; '': nothing is."""
    document = copy.deepcopy(document)
    try:
        documents.loads(json.dumps(document))
    except files.FileInvalid as error:
        if not _is_of_changed_content(str(error)):
            return str(error)
    try:
        for part in 'io', 'quantum':
            _part_of(document, part)
    except files.FileInvalid as error:
        return str(error)
    return ''


def _is_of_changed_content(error):
    return error.startswith('id is ') and error.endswith(
        'the content was changed or cut off since it was measured')


def _part_of(document, part):
    """Look at a part that is not looked at when a profile is read."""
    read = {'io': io, 'quantum': quantum}[part].from_document
    if document.get(part) is not None:
        read(document[part])


def _must_be(error, name):
    """What an error says of a field; '' where it is about another one."""
    found = _ERROR.fullmatch(error)
    if not found or found[1].rpartition('.')[2].split('[')[0] != name:
        return ''
    return found[3] or 'a mapping of fields'
