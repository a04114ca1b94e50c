# SPDX-License-Identifier: Apache-2.0
import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import plain_text


@pytest.mark.parametrize('text, line', [
    ('vm 1, größer', 'vm 1, größer'), ('', ''), ('a\xa0b', 'a\xa0b'),
    ('a\nERROR b', 'a\\nERROR b'), ('\x1b[2J', '\\x1b[2J'),
    ('\x9b2J', '\\x9b2J'), ('a\u202eb', 'a\\u202eb'),
    ('a\u2028b', 'a\\u2028b'), ('\ud800', '\\ud800')])
def test_a_line_stays_one(text, line):
    assert plain_text.one_line(text) == line


def test_a_document_keeps_its_lines():
    assert plain_text.document('a:\n\t- b\x1b\n') == 'a:\n\t- b\\x1b\n'


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_harmful_is_left(text):
    for made, kept in ((plain_text.one_line(text), ''),
                       (plain_text.document(text), '\n\t')):
        assert not [one for one in made if one not in kept and (
            unicodedata.category(one)[0] == 'C' or one in '\u2028\u2029')]


@pytest.fixture
def one_line_logs():
    before = logging.getLogRecordFactory()
    plain_text.log_in_one_line()
    yield
    logging.setLogRecordFactory(before)


def test_a_message_of_the_log_is_one_line(one_line_logs, caplog):
    logging.getLogger('nova_vqos.x').warning('host %s', 'a\nERROR b')
    assert caplog.messages == ['host a\\nERROR b']
    assert caplog.text.count('\n') == 1
